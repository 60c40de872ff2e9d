-- Senders at work. A handful of rows.
SELECT slot, worker, started_at, lease_expires_at
FROM pipeline.sender
WHERE token IS NOT NULL AND lease_expires_at > now()
ORDER BY slot;
