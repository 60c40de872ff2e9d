-- What an application of the chaos run writes: one row a token, which the mail will tell.
INSERT INTO pipeline.email_notification_log
    (receiver_id, entity_name, entity_identifier, data, urgent)
SELECT receiver, 'issue', item,
    jsonb_build_object('verb', 'updated', 'field', 'field ' || token, 'new_value', token), urgent
FROM unnest(%(tokens)s::text[], %(receivers)s::text[], %(items)s::text[], %(urgent)s::boolean[])
    AS written (token, receiver, item, urgent)
