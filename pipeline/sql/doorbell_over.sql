-- The answer is over. By primary key.
UPDATE pipeline.doorbell SET over_at = now() WHERE message_id = %(message_id)s;
