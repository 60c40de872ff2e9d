-- Claims messages for several queues at once, oldest first: the rows become `consumed` and this
-- session holds the advisory lock of each, under the key that dramatiq-pg uses.
--
-- queues, counts: how many are wanted of which; since, since_id: after which message to start in
-- each queue, so that a backlog is not searched from its start each time; passed_over: ids that are
-- in hand already (the locks are re-entrant: this session would get them again) or were locked a
-- moment ago.
--
-- Promises: no row that another session has claimed or is just claiming; a candidate whose lock
-- somebody else has comes back with no message and stays as it was. The commit needn't be on disk:
-- a claim that is lost with the server goes the same way as its lock.
-- Carried by <prefix>queue_claim (queue_name, mtime, message_id) WHERE state = 'queued', and by
-- dramatiq-pg's (state, mtime) where that is missing.
WITH wanted AS (
    SELECT *
    FROM unnest(
        %(queues)s::text[], %(counts)s::int[], %(since)s::timestamptz[], %(since_id)s::uuid[]
    ) AS w(queue_name, amount, since, since_id)
),

candidate AS MATERIALIZED (
    SELECT found.*
    FROM wanted
    CROSS JOIN LATERAL (
        SELECT
            q.message_id,
            q.queue_name,
            q.mtime,
            {lock_key} AS lock_key
        FROM {queue} AS q
        WHERE
            q.state = 'queued'
            AND q.queue_name = wanted.queue_name
            AND (q.mtime, q.message_id) > (wanted.since, wanted.since_id)
            AND q.message_id <> ALL (%(passed_over)s::uuid[])
        ORDER BY q.mtime, q.message_id
        LIMIT wanted.amount
        FOR UPDATE SKIP LOCKED
    ) AS found
),

locked AS MATERIALIZED (
    SELECT
        *,
        pg_try_advisory_lock(lock_key) AS is_mine
    FROM candidate
),

claimed AS (
    UPDATE {queue} AS q
    SET
        "state" = 'consumed',
        mtime = (now() AT TIME ZONE 'UTC')
    FROM locked
    WHERE q.message_id = locked.message_id AND locked.is_mine
    RETURNING
        locked.*,
        {token} AS token,
        coalesce(q.message::text, 'null') AS message
)

SELECT
    seen.message_id::text,
    seen.queue_name,
    seen.lock_key,
    seen.mtime::text,
    seen.token,
    seen.message,
    set_config('synchronous_commit', 'off', true)
FROM (
    SELECT *
    FROM claimed
    UNION ALL
    SELECT
        *,
        NULL,
        NULL
    FROM locked
    WHERE is_mine IS NOT TRUE
) AS seen
ORDER BY seen.mtime, seen.message_id;
