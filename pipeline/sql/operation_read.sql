-- A delivery as an operator finds it, held still until the end of the transaction. By primary key.
SELECT
    id::text, attempt_token::text AS token, receiver_id, entity_name, entity_identifier, state,
    reason, notification_count, uncertain_count, sent_at
FROM pipeline.delivery
WHERE id = %(id)s
FOR UPDATE;
