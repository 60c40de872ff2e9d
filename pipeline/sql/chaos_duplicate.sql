-- Puts copies of some of the pipeline's messages beside them, as a queue that delivers twice.
WITH copied AS (
    INSERT INTO {queue} (message_id, queue_name, state, mtime, message)
    SELECT copy.id, queue_name, 'queued', now(),
        jsonb_set(message, '{message_id}', to_jsonb(copy.id::text))
    FROM (
        SELECT * FROM {queue}
        WHERE queue_name LIKE 'pipeline%%' AND message IS NOT NULL
        ORDER BY random() LIMIT %(limit)s
    ) AS chosen, LATERAL (SELECT gen_random_uuid() AS id, chosen.message_id) AS copy
    RETURNING message_id
)
SELECT count(*) FROM copied
