-- Tells consumers, stock ones too, that these messages can be had.
SELECT pg_notify(
    'dramatiq.' || n.queue_name || '.enqueue',
    jsonb_build_object('message_id', n.message_id)::text
)
FROM unnest(%(queues)s::text[], %(ids)s::text[]) AS n(queue_name, message_id);
