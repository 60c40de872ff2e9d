-- A relay was to be tried and was not: the next sender may. By primary key.
UPDATE pipeline.relay
SET retry_at = now(), updated_at = now()
WHERE name = %(name)s AND failure_count > 0;
