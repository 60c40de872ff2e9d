-- A worker or scheduler says that it is there. By primary key.
INSERT INTO pipeline.process (kind, name)
VALUES (%(kind)s, %(name)s)
ON CONFLICT (kind, name) DO UPDATE SET seen_at = now();
