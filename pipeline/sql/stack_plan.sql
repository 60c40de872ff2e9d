-- Keeps the planner to the walk that stack_claim.sql is written for, in key order along its index.
-- After a burst of rows, before autovacuum has looked at them, it would else read and sort all that
-- waits for the sake of each chunk.
SET LOCAL enable_sort = off;
SET LOCAL enable_hashagg = off;
SET LOCAL enable_bitmapscan = off;
SET LOCAL enable_seqscan = off;
