-- Keeps a message's result in its row, as dramatiq-pg does, but for two things: the row's mtime
-- stays what it was, since it is the claim's token; and a result that is too long for NOTIFY is
-- stored without one instead of not at all (stock waiters want it in the payload).
-- Carried by the primary key.
WITH stored AS (
    INSERT INTO {queue} (queue_name, message_id, "state", result, result_ttl)
    VALUES (
        '__RQ__',
        %(id)s,
        'done',
        %(result)s,
        (now() AT TIME ZONE 'UTC') + %(ttl)s * interval '1 millisecond'
    )
    ON CONFLICT (message_id) DO UPDATE
    SET
        result = excluded.result,
        result_ttl = excluded.result_ttl
    RETURNING message_id, result::text AS result
)

SELECT pg_notify('dramatiq.' || message_id || '.results', result)
FROM stored
WHERE octet_length(result) < 8000;
