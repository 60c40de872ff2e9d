-- A sender claims the deliveries that have been due for longest: at most %(limit)s, under a lease and
-- a fresh token each. None is given to two: SKIP LOCKED, and the state is checked again on the row.
-- Carried by delivery_queued. The attempt itself is counted by delivery_begin.
WITH due AS (
    SELECT id
    FROM pipeline.delivery
    WHERE state = 'queued' AND next_attempt_at <= now() AND expires_at > now()
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
    delivery.uncertain_count, delivery.notification_count, delivery.created_at;
