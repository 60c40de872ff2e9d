-- The markers: from their commit on, and only from then on, the final dots may be sent. No row for
-- one: its lease is over or somebody else has the delivery, and its dot must not be sent.
--
-- Their commit waits for the disk even where synchronous_commit is off: if the database crashed after
-- the dot and had no marker, the mail would be taken for unsent. By primary key, and not by
-- delivery_in_hand: see delivery_begin.sql.
WITH marked AS (
    UPDATE pipeline.delivery
    SET state = 'transmitting', lease_expires_at = now() + %(lease)s, updated_at = now()
    FROM unnest(%(ids)s::uuid[], %(tokens)s::uuid[]) AS held (id, token)
    WHERE delivery.id = held.id AND attempt_token = held.token AND state = (SELECT 'sending')
        AND lease_expires_at > now()
    RETURNING
        delivery.id,
        held.token,
        CASE WHEN current_setting('synchronous_commit') = 'off'
            THEN set_config('synchronous_commit', 'on', true)
        END
)
UPDATE pipeline.delivery_attempt
SET stage = 'dot'
FROM marked
WHERE delivery_attempt.delivery_id = marked.id AND attempt_token = marked.token
RETURNING delivery_attempt.delivery_id::text;
