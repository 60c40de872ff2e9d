-- The outcomes of attempts are written, to the attempts and, where nobody has taken the delivery on
-- since, to the deliveries and their notifications: in one statement, safe to be asked again.
--
-- Late outcomes: recovery leaves the token as it is, so a delivery that was declared uncertain or
-- put back is still settled by the one who knows better, until a new claim gives it a new token.
-- If it has been taken on, a late acceptance leaves the attempt `uncertain`, which explains the
-- second copy; a late refusal is known to have made no copy and is written as what it was.
-- Deliveries are locked before their attempts, as everywhere: that is what `known` is counted for.
-- By primary key; the notifications by email_notification_log_delivery.
WITH told AS MATERIALIZED (
    SELECT *
    FROM unnest(
        %(ids)s::uuid[], %(tokens)s::uuid[], %(states)s::text[], %(reasons)s::text[],
        %(outcomes)s::text[], %(stages)s::text[], %(smtp_codes)s::int[],
        %(enhanced_codes)s::text[], %(replies)s::text[], %(errors)s::text[],
        %(delays)s::interval[], %(refunds)s::int[]
    ) AS told (
        id, token, state, reason, outcome, stage, smtp_code, enhanced_code, reply, error, delay,
        refund
    )
),
settled AS (
    UPDATE pipeline.delivery
    SET state = told.state,
        reason = told.reason,
        attempt_count = greatest(attempt_count - told.refund, 0),
        uncertain_count = uncertain_count + (told.state = 'uncertain')::int,
        next_attempt_at = coalesce(now() + told.delay, next_attempt_at),
        sent_at = CASE WHEN told.state = 'sent' THEN now() END,
        lease_expires_at = NULL,
        updated_at = now()
    FROM told
    WHERE delivery.id = told.id AND attempt_token = told.token
        AND delivery.state IN ('sending', 'transmitting', 'uncertain', 'queued', 'held')
        AND EXISTS (
            SELECT FROM pipeline.delivery_attempt AS own
            WHERE own.delivery_id = told.id AND own.attempt_token = told.token
                AND (own.outcome IS NULL OR own.given_up_at IS NOT NULL)
        )
    RETURNING delivery.id, delivery.state
),
rows_sent AS (
    UPDATE pipeline.email_notification_log
    SET sent_at = now()
    FROM settled
    WHERE email_notification_log.delivery_id = settled.id AND settled.state = 'sent'
),
known AS MATERIALIZED (
    SELECT coalesce(array_agg(id), '{}') AS settled FROM settled
)
UPDATE pipeline.delivery_attempt
SET finished_at = coalesce(finished_at, clock_timestamp()),
    stage = told.stage,
    smtp_code = told.smtp_code,
    enhanced_code = told.enhanced_code,
    reply = told.reply,
    error = told.error,
    given_up_at = NULL,
    outcome = CASE
        WHEN told.outcome = 'sent' AND delivery_attempt.outcome = 'uncertain'
            AND told.id <> ALL (known.settled)
            THEN 'uncertain'
        ELSE told.outcome
    END
FROM told, known
WHERE delivery_id = told.id AND attempt_token = told.token
RETURNING delivery_id::text, told.id = ANY (known.settled);
