-- The newest notifications of a delivery, within a budget of rows and bytes, so that one enormous
-- stack or row can't fill a sender's memory; a row that is too large comes without its data.
-- Carried by email_notification_log_delivery.
SELECT id::text, data, triggered_by_id, created_at, oversized
FROM (
    SELECT
        id, triggered_by_id, created_at, size > %(row_bytes)s AS oversized,
        CASE WHEN size <= %(row_bytes)s THEN data::text END AS data,
        sum(least(size, %(row_bytes)s)) OVER (ORDER BY created_at DESC, id DESC) AS bytes_so_far
    FROM (
        SELECT id, triggered_by_id, created_at, data, octet_length(data::text) AS size
        FROM pipeline.email_notification_log
        WHERE delivery_id = %(delivery_id)s
        ORDER BY created_at DESC, id DESC
        LIMIT %(rows)s
    ) AS newest
) AS budgeted
WHERE bytes_so_far <= %(total_bytes)s
ORDER BY created_at, id;
