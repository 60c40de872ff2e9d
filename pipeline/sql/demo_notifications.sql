-- What the demo's tracker has to tell: an INSERT is the whole producer interface.
INSERT INTO pipeline.email_notification_log
    (receiver_id, triggered_by_id, entity_name, entity_identifier, data, urgent)
VALUES %s
RETURNING id::text;
