-- One chunk of a stacking pass: claims the rows of the next stacks, and nothing else.
--
-- Promises: each claimed row is in exactly one delivery; the rows of a stack that are visible go
-- into one; a stack that another pass has is left to it; a stack whose delivery still waits is not
-- given a second one. Reads each row once, with its place in the table:
-- email_notification_log_pending (for an urgent pass email_notification_log_urgent, and the first of
-- them for all rows of each stack) in key order from where the last chunk ended; the waiting delivery
-- of each by delivery_joinable.
--
-- Bounded by %(row_limit)s: no more rows are read or claimed. A stack that has more is claimed part
-- by part, each of which joins the delivery of the first; until the last has, that is not due, for
-- %(hold)s from each part on, so that a pass which dies in between holds nothing up for long.
--
-- What if two passes overlap: the advisory lock lets one of them have the stack. If the other gets
-- the lock later with an older snapshot, the UPDATE sees that the rows are claimed and leaves them,
-- and a second waiting delivery is refused by delivery_joinable (unique): the chunk is asked again.
WITH grouped AS (
    (
        SELECT
            receiver_id, entity_name, entity_identifier,
            count(*) AS row_count, array_agg(place) AS places
        FROM (
            SELECT receiver_id, entity_name, entity_identifier, ctid AS place
            FROM pipeline.email_notification_log
            WHERE processed_at IS NULL
                AND NOT %(urgent_only)s
                AND (
                    %(from_start)s
                    OR (receiver_id, entity_name, entity_identifier)
                        > (%(receiver_id)s, %(entity_name)s, %(entity_identifier)s)
                )
            ORDER BY receiver_id, entity_name, entity_identifier
            LIMIT %(row_limit)s + 1
        ) AS following
        GROUP BY receiver_id, entity_name, entity_identifier
        ORDER BY receiver_id, entity_name, entity_identifier
        LIMIT %(stack_limit)s
    )
    UNION ALL
    (
        SELECT receiver_id, entity_name, entity_identifier, whole.row_count, whole.places
        FROM (
            (
                SELECT receiver_id, entity_name, entity_identifier
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
            UNION
            -- One that was begun may have no urgent row left.
            SELECT %(begun_receiver_id)s, %(begun_entity_name)s, %(begun_entity_identifier)s
            WHERE %(urgent_only)s AND %(is_begun)s
        ) AS following
        CROSS JOIN LATERAL (
            SELECT count(*) AS row_count, array_agg(place) AS places
            FROM (
                SELECT ctid AS place
                FROM pipeline.email_notification_log AS waiting
                WHERE waiting.receiver_id = following.receiver_id
                    AND waiting.entity_name = following.entity_name
                    AND waiting.entity_identifier = following.entity_identifier
                    AND waiting.processed_at IS NULL
                LIMIT %(row_limit)s + 1
            ) AS of_the_stack
        ) AS whole
    )
),
bounded AS MATERIALIZED (
    -- Those that fit as a whole; of the first in any case as much as fits.
    SELECT
        receiver_id, entity_name, entity_identifier, places[:%(row_limit)s] AS places,
        rows_through <= %(row_limit)s AS is_whole
    FROM (
        SELECT *, row_number() OVER stacks AS number, sum(row_count) OVER stacks AS rows_through
        FROM grouped
        WINDOW stacks AS (ORDER BY receiver_id, entity_name, entity_identifier)
    ) AS counted
    WHERE rows_through <= %(row_limit)s OR number = 1
),
locked AS MATERIALIZED (
    SELECT receiver_id, entity_name, entity_identifier, places, is_whole
    FROM bounded
    WHERE pg_try_advisory_xact_lock(
        pipeline.stack_key(receiver_id, entity_name, entity_identifier))
),
stack AS MATERIALIZED (
    SELECT
        locked.*,
        coalesce(waiting.id, (clock.beginning || substr(gen_random_uuid()::text, 16))::uuid)
            AS delivery_id,
        waiting.id IS NOT NULL AS joins
    FROM locked
    CROSS JOIN (
        -- Ids begin with the time (RFC 9562, version 7): indexes of them grow at their end, whatever
        -- is in the tables already, and a chunk writes to a few of their pages and not to all.
        SELECT lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint), 12, '0') || '-7' AS beginning
    ) AS clock
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
    FROM (SELECT stack.delivery_id, unnest(stack.places) AS place FROM stack) AS due
    WHERE notification.ctid = due.place AND notification.processed_at IS NULL
    RETURNING notification.delivery_id
),
counted AS MATERIALIZED (
    SELECT delivery_id, count(*) AS row_count FROM claimed GROUP BY delivery_id
),
created AS (
    INSERT INTO pipeline.delivery (
        id, receiver_id, entity_name, entity_identifier, message_id, notification_count, expires_at,
        next_attempt_at)
    SELECT
        stack.delivery_id, stack.receiver_id, stack.entity_name, stack.entity_identifier,
        '<' || stack.delivery_id || '@' || %(domain)s || '>', counted.row_count,
        now() + %(max_age)s,
        CASE WHEN stack.is_whole THEN now() ELSE now() + %(hold)s END
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
        next_attempt_at = CASE
            WHEN NOT stack.is_whole THEN greatest(delivery.next_attempt_at, now() + %(hold)s)
            -- It was only held back for this.
            WHEN delivery.state = 'queued' AND delivery.attempt_count = 0
                THEN least(delivery.next_attempt_at, now())
            ELSE delivery.next_attempt_at
        END,
        updated_at = now()
    FROM counted
    JOIN stack USING (delivery_id)
    WHERE stack.joins AND delivery.id = counted.delivery_id
    RETURNING delivery.id
),
last_stack AS (
    SELECT receiver_id, entity_name, entity_identifier, is_whole
    FROM bounded
    ORDER BY receiver_id DESC, entity_name DESC, entity_identifier DESC
    LIMIT 1
)
SELECT
    last_stack.receiver_id,
    last_stack.entity_name,
    last_stack.entity_identifier,
    last_stack.is_whole,
    (SELECT coalesce(sum(row_count), 0) FROM counted)::bigint AS claimed_count,
    (SELECT count(*) FROM created) AS created_count,
    (SELECT count(*) FROM joined) AS joined_count
FROM last_stack;
