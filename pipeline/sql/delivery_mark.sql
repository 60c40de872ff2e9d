-- The marker: from its commit on, and only from then on, the final dot may be sent. No row: the lease
-- is over or somebody else has the delivery, and the dot must not be sent.
--
-- Its commit waits for the disk even where synchronous_commit is off: if the database crashed after
-- the dot and had no marker, the mail would be taken for unsent. By primary key.
WITH marked AS (
    UPDATE pipeline.delivery
    SET state = 'transmitting', lease_expires_at = now() + %(lease)s, updated_at = now()
    WHERE id = %(id)s AND attempt_token = %(token)s AND state = 'sending'
        AND lease_expires_at > now()
    RETURNING
        id,
        CASE WHEN current_setting('synchronous_commit') = 'off'
            THEN set_config('synchronous_commit', 'on', true)
        END
)
UPDATE pipeline.delivery_attempt
SET stage = 'dot'
FROM marked
WHERE delivery_attempt.delivery_id = marked.id AND attempt_token = %(token)s
RETURNING attempt_number;
