-- One notification, in the producer's transaction.
INSERT INTO pipeline.email_notification_log
    (id, receiver_id, triggered_by_id, entity_name, entity_identifier, data, urgent)
VALUES (CAST(%s AS uuid), %s, %s, %s, %s, CAST(%s AS jsonb), %s);
