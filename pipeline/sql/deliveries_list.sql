-- Deliveries for people to look through: those first whose state changed last.
-- One final state: carried by delivery_final; anything else: by a scan of the table.
SELECT
    delivery.id::text,
    delivery.state,
    delivery.reason,
    delivery.receiver_id,
    recipient.email,
    delivery.entity_name,
    delivery.entity_identifier,
    entity.reference,
    delivery.notification_count,
    delivery.attempt_count,
    delivery.uncertain_count,
    delivery.message_id,
    delivery.created_at,
    delivery.updated_at,
    delivery.next_attempt_at,
    delivery.sent_at,
    now() - delivery.updated_at AS age
FROM (
    SELECT *
    FROM pipeline.delivery
    WHERE (%(states)s::text[] IS NULL OR state = ANY (%(states)s))
        AND (%(receiver)s::text IS NULL OR receiver_id = %(receiver)s)
    ORDER BY updated_at DESC, id
    LIMIT %(limit)s
) AS delivery
LEFT JOIN LATERAL (
    SELECT email FROM pipeline.recipient WHERE recipient.id = delivery.receiver_id LIMIT 1
) AS recipient ON true
LEFT JOIN LATERAL (
    SELECT reference
    FROM pipeline.entity
    WHERE entity.entity_name = delivery.entity_name
        AND entity.entity_identifier = delivery.entity_identifier
    LIMIT 1
) AS entity ON true
ORDER BY delivery.updated_at DESC, delivery.id;
