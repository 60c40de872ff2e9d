-- Doorbells under way, by actor: how many nobody has answered yet, how many are being answered.
-- Carried by doorbell_unfinished (a handful of rows).
SELECT
    actor,
    count(*) FILTER (WHERE answered_at IS NULL),
    count(*) FILTER (WHERE answered_at IS NOT NULL)
FROM pipeline.doorbell
WHERE over_at IS NULL
GROUP BY actor
ORDER BY actor;
