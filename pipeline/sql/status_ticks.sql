-- The latest tick, and whether its pass is over. By primary key.
SELECT slot, finished_at IS NOT NULL
FROM pipeline.tick
WHERE schedule = 'stack'
ORDER BY slot DESC
LIMIT 1;
