-- Carries `claim`: the waiting messages of a queue, oldest first.
CREATE INDEX CONCURRENTLY {index} ON {queue} (queue_name, mtime, message_id)
WHERE state = 'queued';
