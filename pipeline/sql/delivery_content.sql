-- Who gets each of some deliveries and what it is about, as they are now, and the database's time.
-- No recipient row: nulls. By primary key (or whatever carries a shop's own views): each is looked up
-- by itself, so that a view which has to be worked out is worked out for one recipient at a time.
SELECT
    wanted.id::text,
    recipient.id IS NOT NULL AS recipient_exists,
    recipient.email,
    recipient.display_name,
    recipient.locale,
    recipient.time_zone,
    coalesce(recipient.active, true) AS active,
    entity.reference,
    entity.title,
    entity.url,
    now() AS read_at
FROM unnest(
    %(ids)s::uuid[], %(receiver_ids)s::text[], %(entity_names)s::text[],
    %(entity_identifiers)s::text[]
) AS wanted (id, receiver_id, entity_name, entity_identifier)
LEFT JOIN LATERAL (
    SELECT
        recipient.id, recipient.email, recipient.display_name, recipient.locale,
        recipient.time_zone, recipient.active
    FROM pipeline.recipient
    WHERE recipient.id = wanted.receiver_id
    LIMIT 1
) AS recipient ON true
LEFT JOIN LATERAL (
    SELECT entity.reference, entity.title, entity.url
    FROM pipeline.entity
    WHERE entity.entity_name = wanted.entity_name
        AND entity.entity_identifier = wanted.entity_identifier
    LIMIT 1
) AS entity ON true;
