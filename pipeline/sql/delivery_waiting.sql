-- How many deliveries are due, counted up to a limit. Carried by delivery_queued.
SELECT count(*)
FROM (
    SELECT
    FROM pipeline.delivery
    WHERE state = 'queued' AND next_attempt_at <= now() AND expires_at > now()
    LIMIT %(limit)s
) AS due;
