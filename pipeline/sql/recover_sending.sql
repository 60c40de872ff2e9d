-- Owns `sending`: deliveries whose sender fell silent before the marker. They were not sent.
-- Carried by delivery_in_hand.
SELECT
    id::text, attempt_token::text, receiver_id, entity_name, entity_identifier, message_id,
    attempt_count, uncertain_count, notification_count, created_at,
    extract(epoch FROM next_attempt_at)::float8
FROM pipeline.delivery
WHERE state = 'sending' AND coalesce(lease_expires_at, '-infinity') <= now()
ORDER BY lease_expires_at
LIMIT %(limit)s;
