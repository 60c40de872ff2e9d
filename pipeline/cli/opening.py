"""How commands get at their settings and at a database that is ready for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from .errors import UsedWrongly
from .output import say

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection

    from pipeline.settings import Settings


def settings_with_database() -> tuple[Settings, bool]:
    """The settings, and whether their database is the embedded one, started here if need be.

    Raises:
      SettingError: When a setting can't be used.
      EmbeddedPostgresError: When there is no embedded Postgres to be had.
    """
    from pipeline.process import resolved
    from pipeline.settings import Settings

    settings = Settings.load()
    return resolved(settings), settings.database_url is None


@contextmanager
def opened() -> Iterator[tuple[Settings, Connection]]:
    """The settings and a connection to a database that has the schema.

    Raises:
      UsedWrongly: When the database is not prepared.
    """
    from pipeline.database import connect

    settings, _ = settings_with_database()
    assert settings.database_url is not None
    connection = connect(settings.database_url, application_name="pipeline command")
    try:
        require_schema(connection, settings)
        yield settings, connection
    finally:
        connection.close()


def settings_for_process() -> Settings:
    """The settings for a worker or scheduler, once its database is known to be ready.

    The embedded database is prepared on the way: nobody else is there to do it.

    Raises:
      UsedWrongly: When the database is not prepared.
    """
    from pipeline.database import connect
    from pipeline.process import prepared
    from pipeline.settings import Settings

    given = Settings.load()
    if given.database_url is None:
        say("PIPELINE_DATABASE_URL is not set: using the embedded Postgres.")
    settings = prepared(given)
    with closing(connect(settings.url, application_name="pipeline command")) as connection:
        require_schema(connection, settings)
    return settings


def require_schema(connection: Connection, settings: Settings) -> None:
    """Refuse a database that this program can't work with.

    Raises:
      UsedWrongly: Naming the database and what to do.
    """
    from pipeline.database import SCHEMA_VERSION, schema_version

    version = schema_version(connection)
    where = database_name(connection)
    if version is None:
        raise UsedWrongly(f"The database {where} has not been prepared: run `pipeline init`.")
    if version < SCHEMA_VERSION:
        raise UsedWrongly(
            f"The database {where} has version {version} of the schema, and this program works "
            f"with version {SCHEMA_VERSION}: run `pipeline init`."
        )
    refuse_newer(version, where)
    if not has_queue(connection, settings):
        raise UsedWrongly(
            f"The database {where} has no table {queue_name(settings)} for Dramatiq's messages: "
            "run `pipeline init`, or set PIPELINE_QUEUE_SCHEMA and PIPELINE_QUEUE_PREFIX to where "
            "it is."
        )


def refuse_newer(version: int | None, where: str) -> None:
    """Refuse a schema that is newer than this program.

    Raises:
      UsedWrongly: When it is.
    """
    from pipeline.database import SCHEMA_VERSION

    if version is not None and version > SCHEMA_VERSION:
        raise UsedWrongly(
            f"The database {where} has version {version} of the schema, and this program only "
            f"knows version {SCHEMA_VERSION}: install a newer version of the program."
        )


def has_queue(connection: Connection, settings: Settings) -> bool:
    """Whether dramatiq-pg's table is there."""
    from pipeline.outbox import QueueTable

    table = QueueTable(settings.queue_schema, f"{settings.queue_prefix}queue")
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (str(table),))
        row = cursor.fetchone()
    return row is not None and bool(row[0])


def queue_name(settings: Settings) -> str:
    """dramatiq-pg's table, with its schema, as people write it."""
    return f"{settings.queue_schema}.{settings.queue_prefix}queue"


def database_name(connection: Connection) -> str:
    """The database as people know it, without its password: `app@db.example.com:5432/shop`."""
    known = connection.get_dsn_parameters()
    host = known.get("host", "")
    if host.startswith("/"):
        return f"{known.get('dbname', '')!r} on this machine"
    return f"{known.get('user', '')}@{host}:{known.get('port', '')}/{known.get('dbname', '')}"
