-- What keeps vacuum from removing dead rows in this database, and has for longer than %(age)s:
-- transactions, prepared ones, and replication slots (whose age is not known).
SELECT
    'transaction of process ' || pid || coalesce(' (' || nullif(application_name, '') || ')', ''),
    now() - xact_start,
    'SELECT pg_terminate_backend(' || pid || ')'
FROM pg_stat_activity
WHERE datname = current_database()
    AND pid <> pg_backend_pid()
    AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
    AND xact_start < now() - %(age)s
UNION ALL
SELECT
    'prepared transaction ' || quote_literal(gid), now() - prepared,
    'ROLLBACK PREPARED ' || quote_literal(gid)
FROM pg_prepared_xacts
WHERE database = current_database() AND prepared < now() - %(age)s
UNION ALL
SELECT
    'replication slot ' || quote_literal(slot_name), NULL,
    'SELECT pg_drop_replication_slot(' || quote_literal(slot_name) || ')'
FROM pg_replication_slots
WHERE NOT active AND (xmin IS NOT NULL OR catalog_xmin IS NOT NULL)
    AND (database IS NULL OR database = current_database())
ORDER BY 2 DESC NULLS LAST;
