-- Message-IDs of what was sent, with their deliveries. Reads the whole table.
SELECT message_id, id::text
FROM pipeline.delivery
WHERE state = 'sent';
