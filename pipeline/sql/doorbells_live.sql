-- How many calls of an actor are under way. For a stacker: its doorbells whose message is still in
-- the queue. For senders: the same of those that nobody has answered, and the places that are taken.
-- One that was fetched, and whose worker has shown no sign of life for %(silence)s, is not counted
-- on: that worker may be frozen, and alive enough to hold its locks.
-- Carried by doorbell_unfinished (a handful of rows) and the queue's primary key.
SELECT
    (
        SELECT count(*)
        FROM pipeline.doorbell
        JOIN {queue} AS message USING (message_id)
        WHERE doorbell.actor = %(actor)s
            AND doorbell.over_at IS NULL
            AND (
                message.state = 'queued'
                OR message.state = 'consumed'
                AND greatest(doorbell.rung_at, doorbell.answered_at) > now() - %(silence)s
            )
            AND (doorbell.answered_at IS NULL OR NOT %(counts_senders)s)
    ) + (
        SELECT count(*)
        FROM pipeline.sender
        WHERE %(counts_senders)s AND lease_expires_at > now()
    );
