-- The people of a chaos run.
INSERT INTO pipeline.recipient (id, email, display_name, time_zone)
SELECT 'p' || n, 'p' || n || '@chaos.example', 'Person ' || n, 'UTC'
FROM generate_series(0, %(count)s - 1) AS n
