-- Takes a sender's place that is free, if there is one within the cap. By primary key.
UPDATE pipeline.sender
SET token = gen_random_uuid(),
    worker = %(worker)s,
    started_at = now(),
    lease_expires_at = now() + %(lease)s
WHERE slot = (
    SELECT slot
    FROM pipeline.sender
    WHERE slot <= %(senders)s AND lease_expires_at <= now()
    ORDER BY slot
    LIMIT 1
    FOR UPDATE SKIP LOCKED
)
RETURNING slot, token::text;
