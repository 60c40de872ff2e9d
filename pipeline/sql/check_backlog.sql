-- Messages that wait or are worked on, of all queues, counted up to a limit: what a stock consumer
-- takes a lock for each of. Carried by dramatiq-pg's index on (state, mtime).
SELECT count(*)
FROM (SELECT FROM {queue} WHERE state IN ('queued', 'consumed') LIMIT %(limit)s) AS live;
