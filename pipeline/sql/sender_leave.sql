-- A sender gives its place back; when the relay wants fewer connections it rests for a while.
-- By primary key.
UPDATE pipeline.sender
SET token = NULL, worker = NULL, started_at = NULL, lease_expires_at = now() + %(rest)s
WHERE slot = %(slot)s AND token = %(token)s;
