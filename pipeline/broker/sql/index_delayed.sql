-- Carries `promote`: the delayed messages of a queue, soonest first. The eta is compared as jsonb,
-- which orders numbers as numbers and has no value that an insert could fail on.
CREATE INDEX CONCURRENTLY {index} ON {queue} (queue_name, {plain_eta})
WHERE state = 'queued' AND right(queue_name, 3) = '.DQ';
