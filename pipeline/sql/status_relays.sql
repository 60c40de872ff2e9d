-- Mail servers that had trouble at some time. A handful of rows.
SELECT name, failure_count, smtp_code, reason, nullif(retry_at, '-infinity'), updated_at
FROM pipeline.relay
ORDER BY name;
