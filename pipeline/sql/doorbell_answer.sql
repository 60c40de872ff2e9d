-- A worker begins to answer; a message that comes again finds nothing to do here. By primary key.
UPDATE pipeline.doorbell
SET answered_at = coalesce(answered_at, clock_timestamp())
WHERE message_id = %(message_id)s;
