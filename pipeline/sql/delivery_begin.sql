-- Attempts begin: they are counted, written down and their leases start anew. No row for one: the
-- delivery was taken over since the claim and must be left alone. Both tables by primary
-- key: what is compared with a subquery can't be looked up in delivery_in_hand, which is full of
-- entries that are dead.
WITH begun AS (
    UPDATE pipeline.delivery
    SET attempt_count = attempt_count + 1, lease_expires_at = now() + %(lease)s
    FROM unnest(%(ids)s::uuid[], %(tokens)s::uuid[], %(workers)s::text[])
        AS held (id, token, worker)
    WHERE delivery.id = held.id AND attempt_token = held.token AND state = (SELECT 'sending')
        AND NOT EXISTS (
            SELECT FROM pipeline.delivery_attempt AS known
            WHERE known.delivery_id = held.id AND known.attempt_token = held.token
        )
    RETURNING delivery.id, held.token, held.worker
)
INSERT INTO pipeline.delivery_attempt (delivery_id, attempt_number, attempt_token, worker)
SELECT
    begun.id,
    1 + coalesce(
        (SELECT max(attempt_number) FROM pipeline.delivery_attempt WHERE delivery_id = begun.id), 0),
    begun.token,
    begun.worker
FROM begun
RETURNING delivery_id::text;
