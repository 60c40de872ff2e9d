-- Whoever makes a delivery of this stack wait (again) holds this lock until the commit.
SELECT pg_advisory_xact_lock(
    pipeline.stack_key(%(receiver_id)s, %(entity_name)s, %(entity_identifier)s));
