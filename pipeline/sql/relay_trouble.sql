-- A relay is in trouble: everybody leaves it alone, for twice as long each time in a row. Senders
-- that fail at the same moment count once. By primary key.
INSERT INTO pipeline.relay AS known (name, failure_count, retry_at, reason, smtp_code)
VALUES (%(name)s, 1, now() + %(pause)s, %(reason)s, %(smtp_code)s)
ON CONFLICT (name) DO UPDATE
SET failure_count = known.failure_count + (known.failure_count = 0 OR %(is_probe)s)::int,
    retry_at = CASE
        WHEN known.failure_count = 0 OR %(is_probe)s THEN now() + %(pause)s * least(
            extract(epoch FROM %(pause_cap)s) / extract(epoch FROM %(pause)s),
            power(2, least(known.failure_count, 40)))::double precision
        ELSE known.retry_at
    END,
    reason = excluded.reason,
    smtp_code = excluded.smtp_code,
    updated_at = now()
RETURNING greatest(retry_at - now(), interval '0');
