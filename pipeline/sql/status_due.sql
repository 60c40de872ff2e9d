-- Since when the delivery that has been due for longest waits for a sender; null when none does.
-- Carried by delivery_queued.
SELECT min(next_attempt_at)
FROM pipeline.delivery
WHERE state = 'queued' AND next_attempt_at <= now();
