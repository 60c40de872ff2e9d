-- How the demo's items are shown, as they are now. By primary key.
INSERT INTO pipeline.entity (entity_name, entity_identifier, reference, title, url)
VALUES %s
ON CONFLICT (entity_name, entity_identifier) DO UPDATE
SET reference = excluded.reference, title = excluded.title, url = excluded.url;
