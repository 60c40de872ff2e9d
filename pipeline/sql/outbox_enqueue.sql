-- Writes any number of messages into dramatiq-pg's table, in the caller's transaction.
--
-- One parameter: a JSON array of {"message": <a Dramatiq message>, "delay": <milliseconds> or null}.
-- `{queue}` is the table, quoted; `{announced}` is `count(*)`, or the same with a pg_notify in it. The
-- only per cent sign is the parameter's, so the text suits every driver of the "format" and
-- "pyformat" styles.
--
-- Promises: each row is the one that dramatiq-pg's own enqueue writes, conflict included (a message
-- that is enqueued again goes back to `queued` in its new queue and keeps its mtime). A delayed one
-- gets its `eta` here, by the database's clock. Listeners are told the id and never the message, so
-- that no message is too long for NOTIFY, and only if the transaction commits.
-- Carried by the primary key.
WITH enqueued AS (
    INSERT INTO {queue} (queue_name, message_id, "state", message)
    SELECT
        item.message ->> 'queue_name',
        (item.message ->> 'message_id')::uuid,
        'queued',
        CASE
            WHEN item.delay IS NULL THEN item.message
            ELSE jsonb_set(
                item.message,
                '{options,eta}',
                to_jsonb(floor(extract(epoch FROM clock_timestamp()) * 1000 + item.delay))
            )
        END
    FROM jsonb_to_recordset(CAST(%s AS jsonb)) AS item(message jsonb, delay numeric)
    ON CONFLICT (message_id) DO UPDATE
    SET
        "state" = 'queued',
        message = excluded.message,
        queue_name = excluded.queue_name
    RETURNING queue_name, message ->> 'message_id' AS message_id
)

SELECT
    pg_current_xact_id()::text,
    {announced}
FROM enqueued;
