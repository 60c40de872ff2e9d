-- Deletes a batch of finished messages, oldest first.
--
-- state: `done` or `rejected`; age: as text for an interval; only: queues to purge, null for all;
-- except: queues to leave; since: where the last batch ended (mtime).
--
-- Promises: never a message whose result is still to be kept. One row, with how many were deleted
-- and the youngest one's mtime. Rows that somebody else has locked are left for another time.
-- Carried by dramatiq-pg's (state, mtime).
WITH finished AS MATERIALIZED (
    SELECT
        q.message_id,
        q.mtime
    FROM {queue} AS q
    WHERE
        q.state = %(state)s::{state}
        AND q.mtime >= %(since)s::timestamptz
        AND q.mtime < (now() AT TIME ZONE 'UTC') - %(age)s::interval
        AND (%(only)s::text[] IS NULL OR q.queue_name = ANY (%(only)s::text[]))
        AND q.queue_name <> ALL (%(except)s::text[])
        AND (q.result_ttl IS NULL OR q.result_ttl < (now() AT TIME ZONE 'UTC'))
    ORDER BY q.mtime
    LIMIT 500
    FOR UPDATE SKIP LOCKED
),

deleted AS (
    DELETE FROM {queue} AS q
    USING finished
    WHERE q.message_id = finished.message_id
    RETURNING finished.mtime
)

SELECT
    count(*),
    max(mtime)::text
FROM deleted;
