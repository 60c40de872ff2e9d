-- An operator wants a delivery to be sent (again): it waits with fresh attempts and a fresh age. Its
-- token stays, so that a late word of an earlier sender is still understood. Runs under stack_lock,
-- after operation_read and delivery_absorb. By primary key.
UPDATE pipeline.delivery
SET state = 'queued',
    reason = %(verb)s || ' by an operator, was ' || state || coalesce(': ' || left(reason, 500), ''),
    attempt_count = 0,
    next_attempt_at = now(),
    expires_at = now() + %(max_age)s,
    lease_expires_at = NULL,
    updated_at = now()
WHERE id = %(id)s;
