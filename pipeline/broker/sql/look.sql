-- Finds messages that are `consumed` and whose lock nobody holds: their worker is gone.
--
-- queues: which to look through; in_hand: our own, whose locks this session holds itself.
--
-- The look takes each lock it can get, shared and until its own end, which is at once.
-- Carried by dramatiq-pg's (state, mtime); there are as many `consumed` rows as messages in hand.
SELECT
    seen.message_id::text,
    seen.token
FROM (
    SELECT
        q.message_id,
        {token} AS token,
        {lock_key} AS lock_key
    FROM {queue} AS q
    WHERE
        q.state = 'consumed'
        AND q.queue_name = ANY (%(queues)s::text[])
        AND q.message_id <> ALL (%(in_hand)s::uuid[])
    OFFSET 0 -- keeps the lock's test out of the scan, to be made for these rows only
) AS seen
WHERE pg_try_advisory_xact_lock_shared(seen.lock_key)
LIMIT 1000;
