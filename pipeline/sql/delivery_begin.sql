-- An attempt begins: it is counted, written down and its lease starts anew. No row: the delivery was
-- taken over since the claim and must be left alone. Asked again under the same token it answers the
-- same. Both tables by primary key.
WITH begun AS (
    UPDATE pipeline.delivery
    SET attempt_count = attempt_count + 1, lease_expires_at = now() + %(lease)s
    WHERE id = %(id)s AND attempt_token = %(token)s AND state = 'sending'
        AND NOT EXISTS (
            SELECT FROM pipeline.delivery_attempt
            WHERE delivery_id = %(id)s AND attempt_token = %(token)s
        )
    RETURNING id, attempt_token
)
INSERT INTO pipeline.delivery_attempt (delivery_id, attempt_number, attempt_token, worker)
SELECT
    begun.id,
    1 + coalesce(
        (SELECT max(attempt_number) FROM pipeline.delivery_attempt WHERE delivery_id = begun.id), 0),
    begun.attempt_token,
    %(worker)s
FROM begun
RETURNING attempt_number;
