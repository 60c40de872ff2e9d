-- A relay works again. By primary key.
UPDATE pipeline.relay
SET failure_count = 0, retry_at = '-infinity', reason = NULL, smtp_code = NULL, updated_at = now()
WHERE name = %(name)s AND failure_count > 0;
