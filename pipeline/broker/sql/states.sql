-- The present state and queue of some messages. Carried by the primary key.
SELECT
    q.message_id::text,
    q.state::text,
    q.queue_name
FROM {queue} AS q
WHERE q.message_id = ANY (%(ids)s::uuid[]);
