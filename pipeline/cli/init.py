"""`pipeline init`: prepares a database."""

from __future__ import annotations

import click

from .opening import database_name, has_queue, queue_name, refuse_newer, settings_with_database
from .output import json_option, print_json


@click.command(short_help="Prepare the database.")
@json_option
def init(as_json: bool) -> None:
    """Prepare the database: apply schema.sql and dramatiq-pg's own schema.

    Safe to repeat, and to run from several machines at once: what is there stays, and an older
    version is brought up to date in place.
    """
    from pipeline.database import connect, schema_version
    from pipeline.database import init as apply

    settings, is_embedded = settings_with_database()
    assert settings.database_url is not None
    connection = connect(settings.database_url, application_name="pipeline init")
    try:
        where = database_name(connection)
        before = schema_version(connection)
        refuse_newer(before, where)
        had_queue = has_queue(connection, settings)
        apply(connection, queue_schema=settings.queue_schema, queue_prefix=settings.queue_prefix)
        after = schema_version(connection)
    finally:
        connection.close()
    table = queue_name(settings)
    if as_json:
        print_json(
            {
                "database": where,
                "is_embedded": is_embedded,
                "schema_version_before": before,
                "schema_version": after,
                "queue_table": table,
                "queue_created": not had_queue,
            }
        )
        return
    click.echo(f"Database {where}{' (the embedded Postgres)' if is_embedded else ''}:")
    if before is None:
        click.echo(f"  schema pipeline: made, version {after}")
    elif before == after:
        click.echo(f"  schema pipeline: was there, version {after}")
    else:
        click.echo(f"  schema pipeline: brought from version {before} to {after}")
    click.echo(f"  table {table}: {'was there' if had_queue else 'made'}")
