-- Our messages in dramatiq-pg's table that are not done, by state. Carried by its index on
-- (state, mtime): what is done may be a shop's millions and is not counted.
SELECT state::text, count(*)
FROM {queue}
WHERE state IN ('queued', 'consumed', 'rejected') AND queue_name = %(queue_name)s
GROUP BY state;
