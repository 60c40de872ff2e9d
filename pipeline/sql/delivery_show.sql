-- Everything about one delivery. By primary key (or whatever carries a shop's own views).
SELECT
    delivery.id::text,
    delivery.state,
    delivery.reason,
    delivery.receiver_id,
    recipient.email,
    recipient.display_name,
    delivery.entity_name,
    delivery.entity_identifier,
    entity.reference,
    entity.title,
    delivery.notification_count,
    delivery.attempt_count,
    delivery.uncertain_count,
    delivery.message_id,
    delivery.created_at,
    delivery.updated_at,
    delivery.next_attempt_at,
    delivery.lease_expires_at,
    delivery.expires_at,
    delivery.sent_at,
    now() AS at
FROM pipeline.delivery
LEFT JOIN LATERAL (
    SELECT email, display_name
    FROM pipeline.recipient
    WHERE recipient.id = delivery.receiver_id
    LIMIT 1
) AS recipient ON true
LEFT JOIN LATERAL (
    SELECT reference, title
    FROM pipeline.entity
    WHERE entity.entity_name = delivery.entity_name
        AND entity.entity_identifier = delivery.entity_identifier
    LIMIT 1
) AS entity ON true
WHERE delivery.id = %(id)s;
