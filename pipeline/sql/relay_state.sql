-- Is a relay in trouble, and may it be tried again? By primary key.
SELECT failure_count > 0, retry_at <= now(), reason, smtp_code, retry_at, failure_count
FROM pipeline.relay
WHERE name = %(name)s;
