-- Loses some of the pipeline's messages that wait or run.
WITH gone AS (
    DELETE FROM {queue}
    WHERE message_id IN (
        SELECT message_id FROM {queue}
        WHERE queue_name LIKE 'pipeline%%' AND state IN ('queued', 'consumed')
        ORDER BY random() LIMIT %(limit)s
    )
    RETURNING message_id
)
SELECT count(*) FROM gone
