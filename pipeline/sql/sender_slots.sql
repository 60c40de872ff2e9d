-- Makes the senders' places, once.
INSERT INTO pipeline.sender (slot)
SELECT slot
FROM generate_series(1, %(senders)s) AS slot
WHERE (SELECT count(*) FROM pipeline.sender WHERE slot <= %(senders)s) < %(senders)s
ON CONFLICT DO NOTHING;
