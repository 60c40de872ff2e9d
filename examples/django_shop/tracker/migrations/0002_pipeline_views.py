"""The pipeline sees people and tickets through views of Django's tables."""

from django.db import migrations

VIEWS = """
    CREATE SCHEMA IF NOT EXISTS pipeline;
    DROP TABLE IF EXISTS pipeline.recipient, pipeline.entity;
    CREATE VIEW pipeline.recipient AS
        SELECT
            id::text AS id,
            email::text AS email,
            name::text AS display_name,
            NULL::text AS locale,
            time_zone::text AS time_zone,
            is_active AS active
        FROM tracker_person;
    CREATE VIEW pipeline.entity AS
        SELECT
            'ticket'::text AS entity_name,
            id::text AS entity_identifier,
            'T-' || id AS reference,
            subject::text AS title,
            'https://tracker.example/tickets/' || id AS url
        FROM tracker_ticket;
    CREATE INDEX tracker_person_id_text ON tracker_person ((id::text));
    CREATE INDEX tracker_ticket_id_text ON tracker_ticket ((id::text));
"""

UNDO = """
    DROP INDEX tracker_person_id_text, tracker_ticket_id_text;
    DROP VIEW pipeline.recipient, pipeline.entity;
"""


class Migration(migrations.Migration):
    dependencies = [("tracker", "0001_initial")]
    operations = [migrations.RunSQL(VIEWS, UNDO)]
