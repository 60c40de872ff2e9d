-- Deliveries for people to look through: those first whose state changed last.
-- Each kind of state by the index that there is for it, so that a few out of millions are found at
-- once: delivery_final and delivery_unsent in their order; what is not over, of which there is little
-- unless there is a backlog, by delivery_unsettled, delivery_in_hand, delivery_queued and
-- delivery_deferred. For one receiver what is over is looked through from the newest.
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
    FROM (
        (
            SELECT *
            FROM pipeline.delivery
            WHERE state = 'sent'
                AND (%(states)s::text[] IS NULL OR state = ANY (%(states)s))
                AND (%(receiver)s::text IS NULL OR receiver_id = %(receiver)s)
            ORDER BY updated_at DESC, id
            LIMIT %(limit)s
        )
        UNION ALL
        (
            SELECT *
            FROM pipeline.delivery
            WHERE state IN ('failed', 'suppressed', 'skipped', 'cancelled')
                AND (%(states)s::text[] IS NULL OR state = ANY (%(states)s))
                AND (%(receiver)s::text IS NULL OR receiver_id = %(receiver)s)
            ORDER BY updated_at DESC, id
            LIMIT %(limit)s
        )
        UNION ALL
        (
            SELECT *
            FROM pipeline.delivery
            WHERE state IN ('uncertain', 'held')
                AND (%(states)s::text[] IS NULL OR state = ANY (%(states)s))
                AND (%(receiver)s::text IS NULL OR receiver_id = %(receiver)s)
            ORDER BY updated_at DESC, id
            LIMIT %(limit)s
        )
        UNION ALL
        (
            SELECT *
            FROM pipeline.delivery
            WHERE state IN ('sending', 'transmitting')
                AND (%(states)s::text[] IS NULL OR state = ANY (%(states)s))
                AND (%(receiver)s::text IS NULL OR receiver_id = %(receiver)s)
            ORDER BY updated_at DESC, id
            LIMIT %(limit)s
        )
        UNION ALL
        (
            SELECT *
            FROM pipeline.delivery
            WHERE state = 'queued'
                AND (%(states)s::text[] IS NULL OR state = ANY (%(states)s))
                AND (%(receiver)s::text IS NULL OR receiver_id = %(receiver)s)
            ORDER BY updated_at DESC, id
            LIMIT %(limit)s
        )
        UNION ALL
        (
            SELECT *
            FROM pipeline.delivery
            WHERE state = 'deferred'
                AND (%(states)s::text[] IS NULL OR state = ANY (%(states)s))
                AND (%(receiver)s::text IS NULL OR receiver_id = %(receiver)s)
            ORDER BY updated_at DESC, id
            LIMIT %(limit)s
        )
    ) AS found
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
