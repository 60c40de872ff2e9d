-- Ends some sessions of a chaos run's own database, never those of others: with each session's
-- process id so many times in a thousand.
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
    AND backend_type = 'client backend' AND random() < %(share)s
