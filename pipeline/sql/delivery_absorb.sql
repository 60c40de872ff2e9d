-- Before a delivery goes back to waiting: one of the same stack that was made meanwhile and still
-- waits gives its notifications to it, so that one stack stays one email. Runs under stack_lock.
-- Only into a delivery that the caller has in hand: nobody else can be reading its notifications for
-- sending. Its row stays locked until the caller has put it back in the same transaction.
-- Carried by delivery_joinable and email_notification_log_delivery.
WITH mine AS MATERIALIZED (
    SELECT id, receiver_id, entity_name, entity_identifier
    FROM pipeline.delivery
    WHERE id = %(id)s AND attempt_token IS NOT DISTINCT FROM %(token)s
        AND state = ANY (%(states)s)
        AND (NOT %(silent_only)s OR coalesce(lease_expires_at, '-infinity') <= now())
        AND uncertain_count = 0
    FOR UPDATE
),
other AS (
    UPDATE pipeline.delivery
    SET state = 'skipped',
        reason = 'its notifications joined delivery ' || mine.id,
        notification_count = 0,
        updated_at = now()
    FROM mine
    WHERE delivery.receiver_id = mine.receiver_id
        AND delivery.entity_name = mine.entity_name
        AND delivery.entity_identifier = mine.entity_identifier
        AND delivery.id <> mine.id
        AND delivery.state IN ('queued', 'deferred')
        AND delivery.uncertain_count = 0
    RETURNING delivery.id, mine.id AS joined_id
),
moved AS (
    UPDATE pipeline.email_notification_log
    SET delivery_id = other.joined_id
    FROM other
    WHERE email_notification_log.delivery_id = other.id
    RETURNING email_notification_log.delivery_id
)
UPDATE pipeline.delivery
SET notification_count = notification_count + (SELECT count(*) FROM moved)
WHERE id IN (SELECT joined_id FROM other);
