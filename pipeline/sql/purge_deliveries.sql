-- Deletes finished deliveries that are older than they are kept, with their notifications and their
-- history, a batch at a time. Carried by delivery_final and email_notification_log_delivery.
WITH old AS (
    SELECT id
    FROM pipeline.delivery
    WHERE state IN ('sent', 'failed', 'suppressed', 'skipped', 'cancelled')
        AND updated_at < now() - %(keep)s
    ORDER BY updated_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
),
notifications AS (
    DELETE FROM pipeline.email_notification_log
    USING old
    WHERE email_notification_log.delivery_id = old.id
)
DELETE FROM pipeline.delivery
USING old
WHERE delivery.id = old.id;
