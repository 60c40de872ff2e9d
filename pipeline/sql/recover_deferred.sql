-- Owns `deferred`: those that are due go back to the queue. Carried by delivery_deferred.
WITH due AS (
    SELECT id
    FROM pipeline.delivery
    WHERE state = 'deferred' AND next_attempt_at <= now() AND expires_at > now()
    ORDER BY next_attempt_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
)
UPDATE pipeline.delivery
SET state = 'queued', updated_at = now()
FROM due
WHERE delivery.id = due.id;
