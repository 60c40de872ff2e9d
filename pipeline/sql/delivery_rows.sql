-- The newest notifications of a delivery, oldest first, without data that is too large to show.
-- Carried by email_notification_log_delivery.
SELECT id, triggered_by_id, urgent, created_at, processed_at, sent_at, data
FROM (
    SELECT
        id::text, triggered_by_id, urgent, created_at, processed_at, sent_at,
        CASE WHEN octet_length(data::text) <= %(bytes)s THEN data::text END AS data
    FROM pipeline.email_notification_log
    WHERE delivery_id = %(id)s
    ORDER BY created_at DESC, email_notification_log.id DESC
    LIMIT %(limit)s
) AS newest
ORDER BY created_at, id;
