-- A sender that is alive keeps what it has: its deliveries, as long as nobody took them over.
-- One whose row is locked is left out: its sender is settling or beginning it at this moment, which
-- renews its lease, and locks the row before and the one after it in another order than we would.
-- By primary key.
WITH free AS (
    SELECT delivery.id
    FROM unnest(%(ids)s::uuid[], %(tokens)s::uuid[]) AS held (id, token)
    JOIN pipeline.delivery ON delivery.id = held.id AND delivery.attempt_token = held.token
    WHERE delivery.state IN ('sending', 'transmitting')
    FOR UPDATE OF delivery SKIP LOCKED
)
UPDATE pipeline.delivery
SET lease_expires_at = now() + %(lease)s
FROM free
WHERE delivery.id = free.id
RETURNING delivery.attempt_token::text;
