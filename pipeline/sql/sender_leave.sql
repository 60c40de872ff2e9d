-- A sender gives its place back; when the relay wants fewer connections it rests for a while, but
-- not if nobody else is sending: all would rest, and nobody would try the relay. Of those that leave
-- at once each has to see the one before: a rest needs the doorbells' lock. By primary key.
UPDATE pipeline.sender
SET token = NULL, worker = NULL, started_at = NULL,
    lease_expires_at = CASE
        WHEN EXISTS (
            SELECT
            FROM pipeline.sender AS other
            WHERE other.slot <> %(slot)s AND other.token IS NOT NULL
                AND other.lease_expires_at > now()
        ) THEN now() + %(rest)s
        ELSE now()
    END
WHERE slot = %(slot)s AND token = %(token)s;
