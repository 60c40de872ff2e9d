-- Owns `uncertain`: the policy decides. `hold`: an operator. `resend`: back to the queue under the
-- same Message-ID, at once the first time, failed when the attempts are used up. From here on it counts
-- as uncertain, whoever made it so: nothing may join it, and it never stands in the way of another
-- delivery of its stack.
-- Carried by delivery_unsettled.
WITH unsettled AS (
    SELECT id
    FROM pipeline.delivery
    WHERE state = 'uncertain'
    ORDER BY updated_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
)
UPDATE pipeline.delivery
SET state = CASE
        WHEN %(policy)s = 'hold' THEN 'held'
        WHEN attempt_count >= %(max_attempts)s THEN 'failed'
        ELSE 'queued'
    END,
    reason = CASE
        WHEN %(policy)s = 'hold' THEN 'held for an operator, ' || coalesce(reason, '')
        WHEN attempt_count >= %(max_attempts)s
            THEN attempt_count || ' attempts used up, ' || coalesce(reason, '')
        ELSE 'sent again, ' || coalesce(reason, '')
    END,
    next_attempt_at = now() + CASE
        -- The factor is capped, not the product: an interval overflows early.
        WHEN uncertain_count > 1 THEN %(retry_base)s * least(
            extract(epoch FROM %(retry_cap)s) / extract(epoch FROM %(retry_base)s),
            power(%(growth)s, least(uncertain_count - 2, 40)))::double precision
        ELSE interval '0'
    END,
    uncertain_count = greatest(uncertain_count, 1),
    updated_at = now()
FROM unsettled
WHERE delivery.id = unsettled.id
RETURNING delivery.id::text, delivery.state, delivery.message_id;
