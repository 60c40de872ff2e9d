-- Deletes our finished messages from dramatiq-pg's table, and their doorbells, a batch at a time.
-- A shop's own messages in the same table are never touched: each is looked up by its key.
WITH finished AS (
    SELECT message_id
    FROM pipeline.doorbell
    WHERE over_at < now() - interval '1 hour'
    ORDER BY over_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
),
messages AS (
    DELETE FROM {queue} AS message
    USING finished
    WHERE message.message_id = finished.message_id AND message.state IN ('done', 'rejected')
    RETURNING message.message_id
)
DELETE FROM pipeline.doorbell
USING finished
WHERE doorbell.message_id = finished.message_id;
