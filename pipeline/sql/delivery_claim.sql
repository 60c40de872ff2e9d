-- A sender claims the deliveries that have been due for longest: at most %(limit)s, under a lease and
-- a fresh token each. None is given to two: SKIP LOCKED, and the state is checked again on the row.
-- Whoever has claimed up to one delivery can go on after it: what lies before it is mostly dead, and
-- while somebody holds an old snapshot it can't be cleaned up and is stepped over again each time.
-- Carried by delivery_queued. The attempt itself is counted by delivery_begin.
WITH due AS (
    SELECT id
    FROM pipeline.delivery
    WHERE state = 'queued' AND next_attempt_at <= now() AND expires_at > now()
        AND (next_attempt_at, id) > (to_timestamp(%(after_due)s), %(after_id)s::uuid)
    ORDER BY next_attempt_at, id
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
)
UPDATE pipeline.delivery
SET state = 'sending',
    attempt_token = gen_random_uuid(),
    lease_expires_at = now() + %(lease)s,
    updated_at = now()
FROM due
WHERE delivery.id = due.id
RETURNING
    delivery.id::text, delivery.attempt_token::text, delivery.receiver_id, delivery.entity_name,
    delivery.entity_identifier, delivery.message_id, delivery.attempt_count,
    delivery.uncertain_count, delivery.notification_count, delivery.created_at,
    extract(epoch FROM delivery.next_attempt_at)::float8;
