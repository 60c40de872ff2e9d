-- Is anybody else sending? A handful of rows.
SELECT EXISTS (
    SELECT
    FROM pipeline.sender
    WHERE lease_expires_at > now() AND token IS NOT NULL AND token <> %(token)s
);
