-- Deliveries in these states, those first that have been in theirs for longest, after a key and not
-- changed since %(until)s, so that one which comes back is not taken twice.
-- Final states: carried by delivery_final; held and uncertain: by delivery_unsettled; others: by a
-- scan of the table.
SELECT id::text, updated_at
FROM pipeline.delivery
WHERE state = ANY (%(states)s)
    AND (%(receiver)s IS NULL OR receiver_id = %(receiver)s)
    AND updated_at <= %(until)s
    AND (updated_at, id) > (%(after)s, %(after_id)s::uuid)
ORDER BY updated_at, id
LIMIT %(limit)s;
