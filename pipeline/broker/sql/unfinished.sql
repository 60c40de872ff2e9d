-- Whether anything in these queues waits or is in hand.
SELECT EXISTS (
    SELECT
    FROM {queue}
    WHERE state IN ('queued', 'consumed') AND queue_name = ANY (%(queues)s::text[])
);
