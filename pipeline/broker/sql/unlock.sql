-- Lets go of advisory locks and says how many of them this session did not hold: there should be
-- none, unless something between us and Postgres gives the session to others.
SELECT count(*) FILTER (WHERE NOT pg_advisory_unlock(lock_key))
FROM unnest(%(keys)s::bigint[]) AS k(lock_key);
