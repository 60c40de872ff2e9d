-- The newest notifications of some deliveries, each within a budget of rows and bytes, so that one
-- enormous stack or row can't fill a sender's memory; a row that is too large comes without its data.
-- All of them together keep within the budget of bytes too: deliveries that are beyond it are left
-- out, never the first, and one that has no notifications comes with nulls.
-- Carried by email_notification_log_delivery.
SELECT delivery_id::text, id::text, data, triggered_by_id, created_at, oversized
FROM (
    SELECT
        wanted.position, wanted.delivery_id, notification.*,
        sum(coalesce(notification.counted, 0)) OVER (ORDER BY wanted.position) AS bytes_in_all
    FROM unnest(%(ids)s::uuid[]) WITH ORDINALITY AS wanted (delivery_id, position)
    LEFT JOIN LATERAL (
        SELECT id, data, triggered_by_id, created_at, oversized, counted
        FROM (
            SELECT
                id, triggered_by_id, created_at, size > %(row_bytes)s AS oversized,
                CASE WHEN size <= %(row_bytes)s THEN data::text END AS data,
                least(size, %(row_bytes)s) AS counted,
                sum(least(size, %(row_bytes)s))
                    OVER (ORDER BY created_at DESC, id DESC) AS bytes_so_far
            FROM (
                SELECT id, triggered_by_id, created_at, data, octet_length(data::text) AS size
                FROM pipeline.email_notification_log
                WHERE email_notification_log.delivery_id = wanted.delivery_id
                ORDER BY created_at DESC, id DESC
                LIMIT %(rows)s
            ) AS newest
        ) AS budgeted
        WHERE bytes_so_far <= %(total_bytes)s
    ) AS notification ON true
) AS read
WHERE position = 1 OR bytes_in_all <= %(total_bytes)s
ORDER BY position, created_at, id;
