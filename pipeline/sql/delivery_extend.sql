-- A sender that is alive keeps what it has: its deliveries, as long as nobody took them over.
-- By primary key.
UPDATE pipeline.delivery
SET lease_expires_at = now() + %(lease)s
FROM unnest(%(ids)s::uuid[], %(tokens)s::uuid[]) AS held (id, token)
WHERE delivery.id = held.id AND delivery.attempt_token = held.token
    AND delivery.state IN ('sending', 'transmitting')
RETURNING delivery.attempt_token::text;
