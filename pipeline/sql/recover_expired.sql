-- Owns what waits (`queued`, `deferred`) and has become too old. Carried by delivery_expiry.
WITH expired AS (
    SELECT id
    FROM pipeline.delivery
    WHERE state IN ('queued', 'deferred') AND expires_at <= now() AND expires_at >= '-infinity'
    ORDER BY expires_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
)
UPDATE pipeline.delivery
SET state = 'failed',
    reason = 'too old: not sent before ' || to_char(
        delivery.expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI" UTC"')
        || coalesce('; last: ' || reason, ''),
    updated_at = now()
FROM expired
WHERE delivery.id = expired.id;
