-- The latest tick whose pass is owed. Carried by tick_unfinished.
SELECT max(slot) FROM pipeline.tick WHERE schedule = %(schedule)s AND finished_at IS NULL;
