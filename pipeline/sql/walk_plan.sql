-- Keeps the planner to a walk in the order of an index, which is what the claims and the recovery
-- queries are written for. After a burst of rows, before autovacuum has looked at them, it would else
-- read and sort all that waits for the sake of each few that are taken.
SET LOCAL enable_sort = off;
SET LOCAL enable_hashagg = off;
SET LOCAL enable_bitmapscan = off;
SET LOCAL enable_seqscan = off;
-- What is looked up by it is different each time.
SET LOCAL enable_memoize = off;
