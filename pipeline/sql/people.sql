-- Names of people. By primary key (or whatever carries a shop's own view).
SELECT id, display_name
FROM pipeline.recipient
WHERE id = ANY (%(ids)s) AND display_name IS NOT NULL;
