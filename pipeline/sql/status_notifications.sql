-- What waits to be stacked: how many rows, how many of them urgent, and since when the oldest does.
-- Carried by email_notification_log_pending.
SELECT count(*), count(*) FILTER (WHERE urgent), min(created_at), now()
FROM pipeline.email_notification_log
WHERE processed_at IS NULL;
