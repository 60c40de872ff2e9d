-- How far the demo is: notifications in deliveries that are final, and the deliveries by state.
-- Reads the whole table.
SELECT state, count(*), sum(notification_count)::bigint
FROM pipeline.delivery
GROUP BY state;
