-- May a sender talk to this relay? `open`: yes. `probe`: it was in trouble, and this sender alone
-- tries one mail. `wait`: it is left alone for now. By primary key.
WITH probe AS (
    UPDATE pipeline.relay
    SET retry_at = now() + %(hold)s
    WHERE name = %(name)s AND failure_count > 0 AND retry_at <= now()
    RETURNING name
)
SELECT CASE
    WHEN EXISTS (SELECT FROM probe) THEN 'probe'
    WHEN EXISTS (SELECT FROM pipeline.relay WHERE name = %(name)s AND failure_count > 0) THEN 'wait'
    ELSE 'open'
END;
