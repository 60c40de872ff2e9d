-- The demo's people. By primary key.
INSERT INTO pipeline.recipient (id, email, display_name, locale, time_zone, active)
VALUES %s
ON CONFLICT (id) DO UPDATE
SET email = excluded.email,
    display_name = excluded.display_name,
    locale = excluded.locale,
    time_zone = excluded.time_zone,
    active = excluded.active;
