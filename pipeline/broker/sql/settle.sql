-- Settles messages that this session has claimed: acknowledged ones become `done`, failed ones
-- `rejected`, returned ones and retries `queued`, those with their new queue and content.
--
-- items: JSON array of {"id", "queue" (as claimed), "state", "new_queue", "message", "delay"};
-- new_queue and message null leave these as they are; a delay (milliseconds) sets the eta.
--
-- Promises: only rows that are still `consumed` in the queue they were claimed from are touched;
-- run on the session that holds their locks, those are rows that nobody else has taken. A row that
-- another transaction has locked is left out instead of waited for. Gives back the ids settled.
-- Carried by the primary key, and by nothing else: `IS TRUE` keeps the index on the state out of it,
-- which is full of dead entries for `consumed`.
WITH item AS (
    SELECT *
    FROM jsonb_to_recordset(%(items)s::jsonb) AS i(
        id uuid, queue text, "state" text, new_queue text, message jsonb, delay numeric
    )
),

mine AS MATERIALIZED (
    SELECT item.*
    FROM item
    INNER JOIN {queue} AS q ON q.message_id = item.id
    WHERE (q.state = 'consumed') IS TRUE AND q.queue_name = item.queue
    FOR UPDATE OF q SKIP LOCKED
)

UPDATE {queue} AS q
SET
    "state" = mine.state::{state},
    queue_name = coalesce(mine.new_queue, q.queue_name),
    message = CASE
        WHEN mine.delay IS NULL THEN coalesce(mine.message, q.message)
        ELSE jsonb_set(
            mine.message,
            '{options,eta}',
            to_jsonb(floor(extract(epoch FROM clock_timestamp()) * 1000 + mine.delay))
        )
    END
FROM mine
WHERE q.message_id = mine.id
RETURNING q.message_id::text;
