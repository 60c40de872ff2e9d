-- A producer is about to ring for a stacking pass: recorded, unless one has been rung for already
-- that nobody has begun to answer. Carried by doorbell_unfinished.
INSERT INTO pipeline.doorbell (message_id, actor)
SELECT CAST(%s AS uuid), CAST(%s AS text)
WHERE NOT EXISTS (
    SELECT FROM pipeline.doorbell
    WHERE actor = %s AND over_at IS NULL AND answered_at IS NULL
)
RETURNING message_id;
