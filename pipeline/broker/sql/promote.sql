-- Moves delayed messages that are due, by the database's clock, into the queue they are for.
--
-- queues: the delay queues to look through (`.DQ`).
--
-- Promises: soonest first; one row for each message moved, and at least one that says in how many
-- milliseconds the next is due, null when nothing waits.
-- Carried by <prefix>queue_delayed (queue_name, eta) WHERE state = 'queued' and the queue is a `.DQ`.
WITH clock AS MATERIALIZED (
    SELECT to_jsonb(floor(extract(epoch FROM clock_timestamp()) * 1000)) AS now_ms
),

due AS MATERIALIZED (
    SELECT found.*
    FROM clock, unnest(%(queues)s::text[]) AS w(queue_name)
    CROSS JOIN LATERAL (
        SELECT q.message_id
        FROM {queue} AS q
        WHERE
            q.state = 'queued'
            AND right(q.queue_name, 3) = '.DQ'
            AND q.queue_name = w.queue_name
            AND {eta} <= clock.now_ms
        ORDER BY {eta}
        LIMIT 1000
        FOR UPDATE SKIP LOCKED
    ) AS found
),

promoted AS (
    UPDATE {queue} AS q
    SET
        queue_name = left(q.queue_name, -3),
        mtime = (now() AT TIME ZONE 'UTC'),
        message = CASE
            WHEN jsonb_typeof(q.message) IS DISTINCT FROM 'object' THEN q.message
            ELSE jsonb_set(
                CASE
                    WHEN jsonb_typeof(q.message -> 'options') = 'object'
                        THEN q.message #- '{options,eta}'
                    ELSE q.message
                END,
                '{queue_name}',
                to_jsonb(left(q.queue_name, -3))
            )
        END
    FROM due
    WHERE q.message_id = due.message_id
    RETURNING q.queue_name, q.message_id::text AS message_id
),

next_due AS (
    SELECT min((upcoming.eta #>> '{}')::numeric) AS eta
    FROM clock, unnest(%(queues)s::text[]) AS w(queue_name)
    CROSS JOIN LATERAL (
        SELECT {eta} AS eta
        FROM {queue} AS q
        WHERE
            q.state = 'queued'
            AND right(q.queue_name, 3) = '.DQ'
            AND q.queue_name = w.queue_name
            AND {eta} > clock.now_ms
            AND jsonb_typeof({eta}) = 'number'
        ORDER BY {eta}
        LIMIT 1
    ) AS upcoming
)

SELECT
    least(next_due.eta - (clock.now_ms #>> '{}')::numeric, 1e12)::float8,
    promoted.queue_name,
    promoted.message_id
FROM clock
CROSS JOIN next_due
LEFT JOIN promoted ON true;
