-- Who gets a delivery and what it is about, as they are now, and the database's time.
-- No recipient row: nulls. By primary key (or whatever carries a shop's own views).
SELECT
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
FROM (SELECT) AS nothing
LEFT JOIN pipeline.recipient ON recipient.id = %(receiver_id)s
LEFT JOIN pipeline.entity
    ON entity.entity_name = %(entity_name)s
    AND entity.entity_identifier = %(entity_identifier)s
LIMIT 1;
