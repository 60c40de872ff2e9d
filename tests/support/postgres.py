"""Databases for tests: made in a moment from a template, and gone afterwards."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import psycopg2
from psycopg2 import sql

from pipeline.embedded import EmbeddedPostgres

#: The database that every test's own one is a copy of.
TEMPLATE = "pipeline_template"


def execute(url: str, statement: str, parameters: Sequence[Any] | None = None) -> list[Any]:
    """Run one statement in a transaction of its own and return its rows, if it has any."""
    with closing(psycopg2.connect(url)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            return cursor.fetchall() if cursor.description else []


def make_template(server: EmbeddedPostgres) -> None:
    """Make the template unless another test process has: `pipeline init` on an empty database."""
    from pipeline.database import init

    with closing(psycopg2.connect(server.dsn("postgres"))) as lock, lock.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (TEMPLATE,))
        cursor.execute("SELECT FROM pg_database WHERE datname = %s", (TEMPLATE,))
        if cursor.fetchone() is not None:
            return
        # Under another name until it is whole: a broken schema shall fail every test, clearly.
        unfinished = f"{TEMPLATE}_{uuid.uuid4().hex[:8]}"
        server.create_database(unfinished)
        with closing(psycopg2.connect(server.dsn(unfinished))) as connection:
            init(connection)
            connection.commit()
        rename = sql.SQL("ALTER DATABASE {} RENAME TO {}").format(
            sql.Identifier(unfinished), sql.Identifier(TEMPLATE)
        )
        cursor.execute(rename)
        lock.commit()


@contextmanager
def fresh_database(server: EmbeddedPostgres, template: str = TEMPLATE) -> Iterator[str]:
    """Make a database for one test, give its address, and drop it whoever is still connected."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    server.create_database(name, template)
    try:
        yield server.dsn(name)
    finally:
        execute(server.dsn("postgres"), f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
