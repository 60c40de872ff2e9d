-- Takes back what SESSION_LIMITS forbids the planner, for a transaction that reads a shop's views.
SET LOCAL enable_seqscan TO DEFAULT;
SET LOCAL enable_hashjoin TO DEFAULT;
SET LOCAL enable_mergejoin TO DEFAULT;
