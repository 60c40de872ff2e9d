-- Remembers doorbells that were written to the queue in the same transaction.
INSERT INTO pipeline.doorbell (message_id, actor)
SELECT unnest(%(message_ids)s::uuid[]), %(actor)s;
