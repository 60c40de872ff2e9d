-- One notification, in the producer's transaction.
INSERT INTO pipeline.email_notification_log
    (receiver_id, triggered_by_id, entity_name, entity_identifier, data, urgent)
VALUES (%s, %s, %s, %s, CAST(%s AS jsonb), %s)
RETURNING CAST(id AS text);
