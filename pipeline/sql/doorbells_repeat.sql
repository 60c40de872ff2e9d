-- Notifies again of doorbells that have hung in the queue for a while: a consumer whose LISTEN
-- connection was replaced never heard of them. Adds no message. Carried by doorbell_unfinished.
WITH unheard AS (
    UPDATE pipeline.doorbell
    SET rung_at = clock_timestamp()
    FROM {queue} AS message
    WHERE message.message_id = doorbell.message_id
        AND message.state = 'queued'
        AND doorbell.answered_at IS NULL AND doorbell.over_at IS NULL
        AND doorbell.rung_at < now() - %(patience)s
    RETURNING message.queue_name, message.message_id
)
SELECT pg_notify(
    'dramatiq.' || queue_name || '.enqueue', jsonb_build_object('message_id', message_id)::text)
FROM unheard;
