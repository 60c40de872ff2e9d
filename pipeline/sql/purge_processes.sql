-- Forgets processes that were not seen for a day; there are few.
DELETE FROM pipeline.process WHERE seen_at < now() - interval '1 day';
