-- A pass that began after these ticks is over. Carried by tick_unfinished.
UPDATE pipeline.tick
SET finished_at = now()
WHERE schedule = %(schedule)s AND slot <= %(slot)s AND finished_at IS NULL;
