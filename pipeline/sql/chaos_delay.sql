-- Delays some of the pipeline's messages that wait: into the queue of delayed ones, as dramatiq-pg
-- has it, due so many milliseconds from now.
WITH delayed AS (
    UPDATE {queue} SET
        queue_name = queue_name || '.DQ', mtime = now(),
        message = message
            || jsonb_build_object('queue_name', queue_name || '.DQ')
            || jsonb_build_object('options', (message -> 'options') || jsonb_build_object(
                'eta', (extract(epoch FROM now()) * 1000)::bigint + %(milliseconds)s))
    WHERE message_id IN (
        SELECT message_id FROM {queue}
        WHERE queue_name LIKE 'pipeline%%' AND queue_name NOT LIKE '%%.DQ' AND state = 'queued'
        ORDER BY random() LIMIT %(limit)s
    )
    RETURNING message_id
)
SELECT count(*) FROM delayed
