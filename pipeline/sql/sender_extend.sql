-- A sender that is alive keeps its place. By primary key.
UPDATE pipeline.sender
SET lease_expires_at = now() + %(lease)s
WHERE slot = %(slot)s AND token = %(token)s;
