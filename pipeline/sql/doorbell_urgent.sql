-- A producer is about to ring for a stacking pass: recorded, unless one has been rung for already
-- that nobody has begun to answer. One row if it shall ring. Whether the queue's table is there is
-- asked when the broker was not named for this call: it may belong to another database.
-- Carried by doorbell_unfinished.
INSERT INTO pipeline.doorbell (message_id, actor)
SELECT CAST(%s AS uuid), CAST(%s AS text)
WHERE (CAST(%s AS boolean) OR to_regclass(CAST(%s AS text)) IS NOT NULL)
    AND NOT EXISTS (
        SELECT
        FROM pipeline.doorbell
        WHERE actor = CAST(%s AS text) AND over_at IS NULL AND answered_at IS NULL
    )
RETURNING message_id;
