-- Where each of the demo's notifications ended: by state of its delivery, null for those that have
-- none or whose delivery is not there.
SELECT written.id, delivery.state, delivery.id::text
FROM unnest(%(ids)s::uuid[]) AS written (id)
LEFT JOIN pipeline.email_notification_log AS notification ON notification.id = written.id
LEFT JOIN pipeline.delivery ON delivery.id = notification.delivery_id;
