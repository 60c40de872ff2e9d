-- An operator gives a delivery up. Runs after operation_read. By primary key.
UPDATE pipeline.delivery
SET state = 'cancelled',
    reason = 'cancelled by an operator, was ' || state || coalesce(': ' || left(reason, 500), ''),
    lease_expires_at = NULL,
    updated_at = now()
WHERE id = %(id)s;
