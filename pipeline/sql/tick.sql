-- The tick of the present slot: made by one scheduler, whoever comes first, however many run.
-- By primary key.
INSERT INTO pipeline.tick (schedule, slot)
VALUES (%(schedule)s, date_bin(%(every)s, now(), 'epoch'))
ON CONFLICT DO NOTHING
RETURNING slot;
