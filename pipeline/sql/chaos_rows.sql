-- The ledger's rows: token, receiver, delivery, whether it is marked as claimed, and as sent when.
SELECT data ->> 'new_value', receiver_id, entity_identifier, delivery_id::text,
    processed_at IS NOT NULL, sent_at
FROM pipeline.email_notification_log
