-- A worker begins to answer, or shows that it is still at it. By primary key.
UPDATE pipeline.doorbell
SET answered_at = clock_timestamp()
WHERE message_id = %(message_id)s;
