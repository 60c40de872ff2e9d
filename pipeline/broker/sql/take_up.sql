-- Puts messages of dead workers back, counts it, and rejects those that were there too often.
--
-- ids, tokens: as two looks found them; limit: how often a message may be taken up.
--
-- `options.takeup` in the message keeps the count, and whether it was started since the last time:
-- a message that was only waiting in the dead worker's memory is counted once and no more. From the
-- second time on it goes back with a random delay, so that messages which happened to run beside the
-- one that kills its worker are parted from it. Delayed messages were not running: never counted.
--
-- Promises: exactly one of several callers takes a message up, and none whose worker lives.
-- Carried by the primary key.
WITH item AS (
    SELECT *
    FROM unnest(%(ids)s::uuid[], %(tokens)s::bigint[]) AS i(id, token)
),

found AS MATERIALIZED (
    SELECT
        q.message_id,
        q.queue_name,
        {lock_key} AS lock_key,
        CASE
            WHEN right(q.queue_name, 3) = '.DQ' THEN 0
            WHEN jsonb_typeof(q.message #> '{options,takeup,count}') = 'number'
                THEN least(greatest((q.message #>> '{options,takeup,count}')::numeric, 0), 1e6)::int
                    + CASE
                        WHEN q.message @> '{"options":{"takeup":{"started":true}}}' THEN 1
                        ELSE 0
                    END
            ELSE 1
        END AS takeup_count
    FROM item
    INNER JOIN {queue} AS q ON q.message_id = item.id
    WHERE (q.state = 'consumed') IS TRUE AND {token} = item.token
    FOR UPDATE OF q SKIP LOCKED
),

abandoned AS MATERIALIZED (
    SELECT
        *,
        takeup_count > %(limit)s::int AS is_too_often,
        takeup_count > 1 AND takeup_count <= %(limit)s::int AS is_put_off
    FROM found
    WHERE pg_try_advisory_xact_lock(lock_key)
)

UPDATE {queue} AS q
SET
    "state" = CASE WHEN a.is_too_often THEN 'rejected' ELSE 'queued' END::{state},
    queue_name = CASE WHEN a.is_put_off THEN a.queue_name || '.DQ' ELSE a.queue_name END,
    message = CASE
        WHEN a.takeup_count = 0 THEN q.message
        WHEN jsonb_typeof(q.message -> 'options') IS DISTINCT FROM 'object' THEN q.message
        ELSE jsonb_set(
            q.message || CASE
                WHEN a.is_put_off THEN jsonb_build_object('queue_name', a.queue_name || '.DQ')
                ELSE '{}'
            END,
            '{options}',
            q.message -> 'options'
            || jsonb_build_object('takeup', jsonb_build_object('count', a.takeup_count))
            || CASE
                WHEN a.is_put_off
                    THEN jsonb_build_object(
                        'eta',
                        floor(
                            extract(epoch FROM clock_timestamp()) * 1000
                            + 1000 * 2 ^ least(a.takeup_count - 2, 6) * (0.5 + random())
                        )
                    )
                ELSE '{}'
            END
        )
    END
FROM abandoned AS a
WHERE q.message_id = a.message_id
RETURNING q.message_id::text, q.queue_name, q.state::text, q.message::text, a.takeup_count;
