"""Runs all checks, in an order in which each one's ground has been checked before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing

import psycopg2

from pipeline.database import Connection, connect
from pipeline.embedded import EmbeddedPostgresError, embedded_url
from pipeline.replies import storable
from pipeline.settings import SettingError, Settings

from . import database
from .relay import check_relay, check_sender
from .settings import Finding, check_variables


def check_all(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Look at everything, and tell each finding as soon as it is known.

    Parameters:
      environ: The environment that the settings come from.
    """
    yield from check_variables(environ)
    try:
        settings = Settings.load(environ)
    except SettingError as error:
        yield Finding("settings", "fail", str(error), "Everything else waits for this.")
        return
    yield Finding("settings", "ok", "all values can be used")
    yield from _check_database(settings)
    yield check_sender(settings)
    yield check_relay(settings)


def _check_database(settings: Settings) -> Iterator[Finding]:
    try:
        url = settings.database_url or embedded_url()
        opened = connect(url, application_name="pipeline check")
    except (psycopg2.Error, EmbeddedPostgresError) as error:
        yield Finding(
            "database", "fail", f"can't be reached: {storable(str(error))}",
            "Check PIPELINE_DATABASE_URL, and whether the server runs and lets this machine in.",
        )  # fmt: skip
        return
    with closing(opened) as connection:
        where = "the embedded one" if settings.database_url is None else connection.info.dbname
        yield Finding("database", "ok", f"{where} answers")
        try:
            yield from _check_inside(connection, settings)
        except psycopg2.Error as error:
            yield Finding(
                "database", "fail", f"a check could not be made: {storable(str(error))}",
                "The database's message tells why.",
            )  # fmt: skip


def _check_inside(connection: Connection, settings: Settings) -> Iterator[Finding]:
    yield from database.check_server(connection, settings)
    yield database.check_clock(connection)
    yield from database.check_vacuum(connection)
    schema = database.check_schema(connection)
    yield schema
    yield database.check_queue(connection, settings)
    if schema.level == "ok":
        yield database.check_privileges(connection, settings)
        yield database.check_views(connection)
        yield from database.check_processes(connection)
