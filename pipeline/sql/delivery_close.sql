-- Ends a delivery that needs no mail: suppressed, or skipped. The attempt never got to a server, so
-- it is given back and no history is left of it. No row: somebody else has the delivery.
-- By primary key.
WITH closed AS (
    UPDATE pipeline.delivery
    SET state = %(state)s,
        reason = %(reason)s,
        attempt_count = greatest(attempt_count - 1, 0),
        lease_expires_at = NULL,
        updated_at = now()
    WHERE id = %(id)s AND attempt_token = %(token)s AND state = 'sending'
    RETURNING id
)
DELETE FROM pipeline.delivery_attempt
USING closed
WHERE delivery_attempt.delivery_id = closed.id AND attempt_token = %(token)s;
