-- Takes a delivery from a sender that fell silent before the marker: back to the queue, or failed
-- when its attempts are used up. The token stays, so that a late word of that sender is understood.
-- Runs under stack_lock. By primary key.
WITH lost AS (
    UPDATE pipeline.delivery
    SET state = CASE WHEN attempt_count >= %(max_attempts)s THEN 'failed' ELSE 'queued' END,
        reason = CASE
            WHEN attempt_count >= %(max_attempts)s
                THEN attempt_count || ' attempts used up, the last one lost its sender'
            ELSE 'its sender fell silent before the final dot'
        END,
        next_attempt_at = greatest(next_attempt_at, now() + %(delay)s),
        lease_expires_at = NULL,
        updated_at = now()
    WHERE id = %(id)s AND state = 'sending'
        AND attempt_token IS NOT DISTINCT FROM %(token)s
        AND coalesce(lease_expires_at, '-infinity') <= now()
    RETURNING id, attempt_token
),
abandoned AS (
    UPDATE pipeline.delivery_attempt
    SET outcome = 'abandoned',
        finished_at = now(),
        given_up_at = now(),
        error = 'the lease ran out before the final dot'
    FROM lost
    WHERE delivery_attempt.delivery_id = lost.id
        AND delivery_attempt.attempt_token = lost.attempt_token
        AND delivery_attempt.outcome IS NULL
)
SELECT count(*) FROM lost;
