-- One rings at a time, until its transaction is over, so that the cap on doorbells is kept.
SELECT pg_advisory_xact_lock(hashtextextended('pipeline.doorbell', 0));
