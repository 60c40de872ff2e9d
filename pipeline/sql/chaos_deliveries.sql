-- The ledger's deliveries: what became of each, and how its attempts ended, in their order.
SELECT d.id::text, d.message_id, d.state, coalesce(d.reason, ''), d.receiver_id,
    d.entity_identifier, d.notification_count, d.sent_at,
    coalesce(array_agg(coalesce(a.outcome, 'open') ORDER BY a.attempt_number)
        FILTER (WHERE a.delivery_id IS NOT NULL), '{}')
FROM pipeline.delivery AS d LEFT JOIN pipeline.delivery_attempt AS a ON a.delivery_id = d.id
GROUP BY d.id
