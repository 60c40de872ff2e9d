-- Workers and schedulers that were seen within %(within)s. A handful of rows.
SELECT kind, name, started_at, seen_at
FROM pipeline.process
WHERE seen_at > now() - %(within)s
ORDER BY kind, name;
