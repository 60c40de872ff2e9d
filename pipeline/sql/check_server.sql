-- What kind of server this is, and how much room it has. Connections that are kept for superusers
-- don't count as room.
SELECT
    current_setting('server_version') AS version,
    current_setting('server_version_num')::integer AS version_number,
    current_setting('max_connections')::integer
        - current_setting('superuser_reserved_connections')::integer AS connection_limit,
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')
        AS connection_count,
    current_setting('max_locks_per_transaction')::bigint
        * (current_setting('max_connections')::integer
            + current_setting('max_prepared_transactions')::integer) AS lock_room,
    current_setting('fsync')::boolean AS fsync,
    current_setting('synchronous_commit') AS synchronous_commit,
    pg_is_in_recovery() AS is_standby;
