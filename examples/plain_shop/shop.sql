-- The shop's own tables, and the two views through which the pipeline sees its people and tickets.
-- Apply it once, before or after `pipeline init`: psql "$PIPELINE_DATABASE_URL" -f shop.sql
BEGIN;

CREATE TABLE person (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       text    NOT NULL,
    email      text    NOT NULL,
    time_zone  text    NOT NULL DEFAULT 'UTC',
    has_left   boolean NOT NULL DEFAULT false
);
CREATE TABLE ticket (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    subject  text   NOT NULL,
    state    text   NOT NULL DEFAULT 'Todo'
);
CREATE TABLE watcher (
    ticket_id  bigint NOT NULL REFERENCES ticket,
    person_id  bigint NOT NULL REFERENCES person,
    PRIMARY KEY (ticket_id, person_id)
);
CREATE TABLE search_index (
    ticket_id  bigint PRIMARY KEY REFERENCES ticket,
    words      text   NOT NULL
);

-- `pipeline init` makes tables of these names where there is nothing yet.
CREATE SCHEMA IF NOT EXISTS pipeline;
DROP TABLE IF EXISTS pipeline.recipient, pipeline.entity;
CREATE VIEW pipeline.recipient AS
    SELECT
        id::text AS id,
        email,
        name AS display_name,
        NULL::text AS locale,
        time_zone,
        NOT has_left AS active
    FROM person;
CREATE VIEW pipeline.entity AS
    SELECT
        'ticket'::text AS entity_name,
        id::text AS entity_identifier,
        'SHOP-' || id AS reference,
        subject AS title,
        'https://shop.example/tickets/' || id AS url
    FROM ticket;
-- The pipeline asks for ids as text; without these, each mail would read the whole table.
CREATE INDEX ON person ((id::text));
CREATE INDEX ON ticket ((id::text));

INSERT INTO person (name, email, time_zone) VALUES
    ('Ann Arbor', 'ann@shop.example', 'America/Detroit'),
    ('Bo Berg', 'bo@shop.example', 'Europe/Oslo'),
    ('Cid Court', 'cid@shop.example', 'Asia/Kolkata');
INSERT INTO ticket (subject) VALUES ('The till does not open'), ('Order more paper');
INSERT INTO watcher VALUES (1, 1), (1, 2), (1, 3), (2, 2);

COMMIT;
