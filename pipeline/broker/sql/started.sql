-- Notes in a message that was taken up before that it is started now: `take_up` counts only those.
-- Carried by the primary key.
UPDATE {queue}
SET message = jsonb_set(message, '{options,takeup,started}', 'true')
WHERE
    message_id = %(id)s
    AND state = 'consumed'
    AND message #> '{options,takeup}' IS NOT NULL;
