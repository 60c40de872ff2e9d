-- Drops what waits in a queue, delayed messages too. What workers have in hand is theirs.
DELETE FROM {queue}
WHERE state = 'queued' AND queue_name = ANY (%(queues)s::text[]);
