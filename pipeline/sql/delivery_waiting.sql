-- How many deliveries are due, counted up to a limit, and how many senders they need that are at work
-- already: when one has been due for longer than %(patience)s, those are busy with something else.
-- Carried by delivery_queued.
SELECT
    count(*),
    CASE WHEN min(next_attempt_at) < now() - %(patience)s
        THEN (SELECT count(*) FROM pipeline.sender WHERE lease_expires_at > now())
        ELSE 0
    END
FROM (
    SELECT next_attempt_at
    FROM pipeline.delivery
    WHERE state = 'queued' AND next_attempt_at <= now() AND expires_at > now()
    ORDER BY next_attempt_at, id
    LIMIT %(limit)s
) AS due;
