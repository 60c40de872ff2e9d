-- Deletes finished ticks of days that are over; there are few.
DELETE FROM pipeline.tick
WHERE finished_at IS NOT NULL AND slot < now() - interval '2 days';
