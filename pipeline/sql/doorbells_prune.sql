-- Gives up doorbells that can't be answered any more, and ends their messages: those that are gone or
-- finished, and those whose worker has died. dramatiq-pg's consumer holds a session advisory lock for
-- each message from the claim on (the key of its `message_lock`), so a consumed message that nobody
-- has locked belongs to the dead. If it does not (a consumer that keeps no locks), one more doorbell
-- rings than was needed, and the senders' places keep it from doing harm. The message is marked done
-- rather than deleted: a stock consumer that was told of it fails when it finds none.
-- Carried by doorbell_unfinished and the queue's primary key.
WITH dead AS MATERIALIZED (
    SELECT message.message_id
    FROM pipeline.doorbell
    JOIN {queue} AS message USING (message_id)
    WHERE doorbell.over_at IS NULL
        AND message.state = 'consumed'
        AND (
            (
                'x' || substr(encode(sha256(convert_to(
                    message.queue_name || message.message_id::text, 'UTF8')), 'hex'), 25, 16)
            )::bit(64)::bigint # (1::bigint << 63)
        ) NOT IN (
            SELECT classid::bigint << 32 | objid::bigint
            FROM pg_locks
            WHERE locktype = 'advisory'
                AND objsubid = 1
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        )
),
ended AS (
    UPDATE {queue} AS message
    SET state = 'done'
    FROM dead
    WHERE message.message_id = dead.message_id AND message.state = 'consumed'
)
UPDATE pipeline.doorbell
SET over_at = now()
WHERE over_at IS NULL
    AND (
        message_id IN (SELECT message_id FROM dead)
        OR NOT EXISTS (
            SELECT
            FROM {queue} AS message
            WHERE message.message_id = doorbell.message_id
                AND message.state IN ('queued', 'consumed')
        )
    );
