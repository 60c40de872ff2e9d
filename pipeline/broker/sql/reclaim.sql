-- Takes back, on a new session, what an ended one had claimed.
--
-- ids, queues, keys, tokens: of the messages in hand.
--
-- Promises: `is_mine` for a message that nobody has taken up since, with its lock on this session
-- now. The token is the time of the claim: whoever takes a message over, a stock consumer too,
-- writes another.
-- Carried by the primary key.
WITH item AS (
    SELECT *
    FROM unnest(
        %(ids)s::uuid[], %(queues)s::text[], %(keys)s::bigint[], %(tokens)s::bigint[]
    ) AS i(id, queue, lock_key, token)
),

mine AS MATERIALIZED (
    SELECT
        q.message_id,
        item.lock_key
    FROM item
    INNER JOIN {queue} AS q ON q.message_id = item.id
    WHERE (q.state = 'consumed') IS TRUE AND q.queue_name = item.queue AND {token} = item.token
    FOR UPDATE OF q SKIP LOCKED
)

SELECT
    message_id::text,
    pg_try_advisory_lock(lock_key) AS is_mine
FROM mine;
