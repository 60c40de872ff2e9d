"""One transaction with each driver whose cursors are taken, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any

import django
import django.conf
import psycopg
import psycopg.rows
import psycopg2
import psycopg2.extras
import sqlalchemy
from django.db.backends.postgresql.base import DatabaseWrapper

#: Opens a connection, gives a cursor with an open transaction, and commits when the block ends, or
#: rolls back when it raises.
Driver = Callable[[str], AbstractContextManager[Any]]

if not django.conf.settings.configured:
    django.conf.settings.configure(USE_TZ=True)
    django.setup()


def psycopg2_driver(**options: Any) -> Driver:
    @contextmanager
    def opened(url: str) -> Iterator[Any]:
        with (
            closing(psycopg2.connect(url, **options)) as connection,
            connection,
            connection.cursor() as cursor,
        ):
            yield cursor

    return opened


def psycopg3_driver(**options: Any) -> Driver:
    @contextmanager
    def opened(url: str) -> Iterator[Any]:
        with psycopg.connect(url, **options) as connection, connection.cursor() as cursor:
            yield cursor

    return opened


@contextmanager
def psycopg3_pipeline_mode(url: str) -> Iterator[Any]:
    with (
        psycopg.connect(url) as connection,
        connection.pipeline(),
        connection.cursor() as cursor,
    ):
        yield cursor


def sqlalchemy_driver(scheme: str, connect: Callable[[str], Any]) -> Driver:
    @contextmanager
    def opened(url: str) -> Iterator[Any]:
        engine = sqlalchemy.create_engine(scheme, creator=lambda: connect(url))
        try:
            with engine.begin() as connection:
                # As an application has it that works with SQLAlchemy otherwise.
                connection.execute(sqlalchemy.text("SELECT 1"))
                yield connection.connection.cursor()
        finally:
            engine.dispose()

    return opened


def django_driver(*, debug: bool = False, **options: Any) -> Driver:
    @contextmanager
    def opened(url: str) -> Iterator[Any]:
        dsn = psycopg2.extensions.parse_dsn(url)
        wrapper = DatabaseWrapper(
            {
                "NAME": dsn["dbname"],
                "USER": dsn.get("user", ""),
                "PASSWORD": dsn.get("password", ""),
                "HOST": dsn.get("host", ""),
                "PORT": dsn.get("port", ""),
                "OPTIONS": options,
                "AUTOCOMMIT": True,
                "ATOMIC_REQUESTS": False,
                "CONN_MAX_AGE": 0,
                "CONN_HEALTH_CHECKS": False,
                "TIME_ZONE": None,
                "TEST": {},
            },
            "tests",
        )
        wrapper.force_debug_cursor = debug
        wrapper.ensure_connection()
        wrapper.set_autocommit(False)
        try:
            with wrapper.cursor() as cursor:
                yield cursor
            wrapper.commit()
        finally:
            wrapper.close()

    return opened


#: Django takes psycopg 3 where that is installed.
DRIVERS: dict[str, Driver] = {
    "psycopg2": psycopg2_driver(),
    "psycopg2, dicts": psycopg2_driver(cursor_factory=psycopg2.extras.RealDictCursor),
    "psycopg2, Latin-1": psycopg2_driver(client_encoding="LATIN1"),
    "psycopg 3": psycopg3_driver(),
    "psycopg 3, client-side": psycopg3_driver(cursor_factory=psycopg.ClientCursor),
    "psycopg 3, dicts": psycopg3_driver(row_factory=psycopg.rows.dict_row),
    "psycopg 3, pipeline mode": psycopg3_pipeline_mode,
    "Django": django_driver(),
    "Django, server-side": django_driver(server_side_binding=True),
    "Django, debug": django_driver(debug=True),
    "Django, debug, server-side": django_driver(debug=True, server_side_binding=True),
    "SQLAlchemy, psycopg2": sqlalchemy_driver("postgresql+psycopg2://", psycopg2.connect),
    "SQLAlchemy, psycopg 3": sqlalchemy_driver("postgresql+psycopg://", psycopg.connect),
}
