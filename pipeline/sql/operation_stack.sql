-- The stack of a delivery, which never changes. By primary key.
SELECT receiver_id, entity_name, entity_identifier
FROM pipeline.delivery
WHERE id = %(id)s;
