-- One chunk of a stacking pass: claims the rows of the next stacks, and nothing else.
--
-- Promises: each claimed row is in exactly one delivery; the rows of a stack that are visible go
-- into one; a stack that another pass has is left to it; a stack whose delivery still waits is not
-- given a second one. Reads each row once: email_notification_log_pending (for an urgent pass
-- email_notification_log_urgent) in key order from where the last chunk ended, a stack of its own
-- size at a time; the waiting delivery of each by delivery_joinable.
--
-- What if two passes overlap: the advisory lock lets one of them have the stack. If the other gets
-- the lock later with an older snapshot, the UPDATE sees that the rows are claimed and leaves them,
-- and a second waiting delivery is refused by delivery_joinable (unique): the chunk is asked again.
WITH grouped AS (
    (
        SELECT receiver_id, entity_name, entity_identifier, count(*) AS row_count
        FROM pipeline.email_notification_log
        WHERE processed_at IS NULL
            AND NOT %(urgent_only)s
            AND (
                %(from_start)s
                OR (receiver_id, entity_name, entity_identifier)
                    > (%(receiver_id)s, %(entity_name)s, %(entity_identifier)s)
            )
        GROUP BY receiver_id, entity_name, entity_identifier
        ORDER BY receiver_id, entity_name, entity_identifier
        LIMIT %(stack_limit)s
    )
    UNION ALL
    (
        SELECT receiver_id, entity_name, entity_identifier, count(*) AS row_count
        FROM pipeline.email_notification_log
        WHERE processed_at IS NULL AND urgent
            AND %(urgent_only)s
            AND (
                %(from_start)s
                OR (receiver_id, entity_name, entity_identifier)
                    > (%(receiver_id)s, %(entity_name)s, %(entity_identifier)s)
            )
        GROUP BY receiver_id, entity_name, entity_identifier
        ORDER BY receiver_id, entity_name, entity_identifier
        LIMIT %(stack_limit)s
    )
),
bounded AS MATERIALIZED (
    SELECT receiver_id, entity_name, entity_identifier
    FROM (
        SELECT *, sum(row_count) OVER (
            ORDER BY receiver_id, entity_name, entity_identifier
        ) - row_count AS rows_before
        FROM grouped
    ) AS counted
    WHERE rows_before < %(row_limit)s
),
locked AS MATERIALIZED (
    SELECT receiver_id, entity_name, entity_identifier
    FROM bounded
    WHERE pg_try_advisory_xact_lock(
        pipeline.stack_key(receiver_id, entity_name, entity_identifier))
),
stack AS MATERIALIZED (
    SELECT
        locked.*,
        coalesce(waiting.id, gen_random_uuid()) AS delivery_id,
        waiting.id IS NOT NULL AS joins
    FROM locked
    LEFT JOIN LATERAL (
        -- One that a sender is taking at this moment is skipped: it does not wait any more.
        SELECT delivery.id
        FROM pipeline.delivery
        WHERE delivery.receiver_id = locked.receiver_id
            AND delivery.entity_name = locked.entity_name
            AND delivery.entity_identifier = locked.entity_identifier
            AND delivery.state IN ('queued', 'deferred')
            AND delivery.uncertain_count = 0
        FOR UPDATE SKIP LOCKED
    ) AS waiting ON true
),
claimed AS (
    UPDATE pipeline.email_notification_log AS notification
    SET processed_at = now(), delivery_id = due.delivery_id
    FROM (
        SELECT stack.delivery_id, pending.ctid
        FROM stack
        CROSS JOIN LATERAL (
            -- OFFSET 0: stack by stack along the index, whatever the statistics say. A planner that
            -- takes all that waits for a row or two would compare each of it with each stack.
            SELECT waiting.ctid
            FROM pipeline.email_notification_log AS waiting
            WHERE waiting.receiver_id = stack.receiver_id
                AND waiting.entity_name = stack.entity_name
                AND waiting.entity_identifier = stack.entity_identifier
                AND waiting.processed_at IS NULL
            OFFSET 0
        ) AS pending
    ) AS due
    WHERE notification.ctid = due.ctid AND notification.processed_at IS NULL
    RETURNING notification.delivery_id
),
counted AS MATERIALIZED (
    SELECT delivery_id, count(*) AS row_count FROM claimed GROUP BY delivery_id
),
created AS (
    INSERT INTO pipeline.delivery (
        id, receiver_id, entity_name, entity_identifier, message_id, notification_count, expires_at)
    SELECT
        stack.delivery_id, stack.receiver_id, stack.entity_name, stack.entity_identifier,
        '<' || stack.delivery_id || '@' || %(domain)s || '>', counted.row_count,
        now() + %(max_age)s
    FROM stack
    JOIN counted USING (delivery_id)
    WHERE NOT stack.joins
    RETURNING id
),
joined AS (
    UPDATE pipeline.delivery
    SET notification_count = delivery.notification_count + counted.row_count,
        -- What is new must not fail for the age of what it joins.
        expires_at = greatest(delivery.expires_at, now() + %(max_age)s),
        updated_at = now()
    FROM counted
    JOIN stack USING (delivery_id)
    WHERE stack.joins AND delivery.id = counted.delivery_id
    RETURNING delivery.id
),
last_stack AS (
    SELECT receiver_id, entity_name, entity_identifier
    FROM bounded
    ORDER BY receiver_id DESC, entity_name DESC, entity_identifier DESC
    LIMIT 1
)
SELECT
    last_stack.receiver_id,
    last_stack.entity_name,
    last_stack.entity_identifier,
    (SELECT coalesce(sum(row_count), 0) FROM counted)::bigint AS claimed_count,
    (SELECT count(*) FROM created) AS created_count,
    (SELECT count(*) FROM joined) AS joined_count
FROM last_stack;
