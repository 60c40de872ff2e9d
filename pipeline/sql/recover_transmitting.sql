-- Owns `transmitting`: deliveries whose sender fell silent after the marker. Nobody knows whether the
-- server has them. The token stays: if the sender speaks after all, its word settles them.
-- Carried by delivery_in_hand.
WITH silent AS (
    SELECT id
    FROM pipeline.delivery
    WHERE state = 'transmitting' AND coalesce(lease_expires_at, '-infinity') <= now()
    ORDER BY lease_expires_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
),
lost AS (
    UPDATE pipeline.delivery
    SET state = 'uncertain',
        reason = 'may have been received: its sender fell silent after the final dot',
        uncertain_count = uncertain_count + 1,
        lease_expires_at = NULL,
        updated_at = now()
    FROM silent
    WHERE delivery.id = silent.id
    RETURNING delivery.id, delivery.attempt_token
),
attempts AS (
    UPDATE pipeline.delivery_attempt
    SET outcome = 'uncertain',
        finished_at = now(),
        given_up_at = now(),
        error = 'the lease ran out after the final dot'
    FROM lost
    WHERE delivery_attempt.delivery_id = lost.id
        AND delivery_attempt.attempt_token = lost.attempt_token
        AND delivery_attempt.outcome IS NULL
)
SELECT id::text FROM lost;
