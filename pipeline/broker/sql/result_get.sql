-- A message's result. Carried by the primary key.
SELECT result
FROM {queue}
WHERE message_id = %(id)s AND result IS NOT NULL;
