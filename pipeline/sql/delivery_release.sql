-- Puts back a delivery that was claimed and not begun. By primary key.
UPDATE pipeline.delivery
SET state = 'queued', lease_expires_at = NULL, updated_at = now()
WHERE id = %(id)s AND attempt_token = %(token)s AND state = 'sending'
    AND NOT EXISTS (
        SELECT FROM pipeline.delivery_attempt
        WHERE delivery_id = %(id)s AND attempt_token = %(token)s
    );
