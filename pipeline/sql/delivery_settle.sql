-- The outcome of an attempt is written, to the attempt and, if nobody has taken the delivery on
-- since, to the delivery and its notifications: in one statement, safe to be asked again.
--
-- Late outcomes: recovery leaves the token as it is, so a delivery that was declared uncertain or
-- put back is still settled by the one who knows better, until a new claim gives it a new token.
-- If it has been taken on, a late acceptance leaves the attempt `uncertain`, which explains the
-- second copy; a late refusal is known to have made no copy and is written as what it was.
-- The delivery is locked before its attempt, as everywhere: that is what `known` is counted for.
-- By primary key; the notifications by email_notification_log_delivery.
WITH settled AS (
    UPDATE pipeline.delivery
    SET state = %(state)s,
        reason = %(reason)s,
        attempt_count = greatest(attempt_count - %(refund)s, 0),
        uncertain_count = uncertain_count + (%(state)s = 'uncertain')::int,
        next_attempt_at = coalesce(now() + %(delay)s, next_attempt_at),
        sent_at = CASE WHEN %(state)s = 'sent' THEN now() END,
        lease_expires_at = NULL,
        updated_at = now()
    WHERE id = %(id)s AND attempt_token = %(token)s
        AND state IN ('sending', 'transmitting', 'uncertain', 'queued', 'held')
        AND EXISTS (
            SELECT FROM pipeline.delivery_attempt
            WHERE delivery_id = %(id)s AND attempt_token = %(token)s
                AND (outcome IS NULL OR given_up_at IS NOT NULL)
        )
    RETURNING id, state
),
told AS (
    UPDATE pipeline.email_notification_log
    SET sent_at = now()
    FROM settled
    WHERE email_notification_log.delivery_id = settled.id AND settled.state = 'sent'
),
known AS MATERIALIZED (
    SELECT count(*) > 0 AS is_settled FROM settled
)
UPDATE pipeline.delivery_attempt
SET finished_at = coalesce(finished_at, clock_timestamp()),
    stage = %(stage)s,
    smtp_code = %(smtp_code)s,
    enhanced_code = %(enhanced_code)s,
    reply = %(reply)s,
    error = %(error)s,
    given_up_at = NULL,
    outcome = CASE
        WHEN %(outcome)s = 'sent' AND outcome = 'uncertain' AND NOT known.is_settled
            THEN 'uncertain'
        ELSE %(outcome)s
    END
FROM known
WHERE delivery_id = %(id)s AND attempt_token = %(token)s
RETURNING known.is_settled;
