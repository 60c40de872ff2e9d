"""`pipeline init`."""

from __future__ import annotations

from pipeline.database import SCHEMA_VERSION
from tests.support.commands import run
from tests.support.postgres import execute


def test_init_prepares_an_empty_database(empty_database_url: str) -> None:
    """It makes both schemas and says so, and then everything else works."""
    ran = run("init", database_url=empty_database_url)

    assert ran.status == 0
    assert f"made, version {SCHEMA_VERSION}" in ran.out
    assert "dramatiq.queue: made" in ran.out
    assert run("status", database_url=empty_database_url).status == 0


def test_init_may_be_repeated(database_url: str) -> None:
    """A second time it says that everything was there, and leaves the rows alone."""
    execute(database_url, "INSERT INTO pipeline.recipient (id) VALUES ('7')")

    ran = run("init", database_url=database_url)

    assert ran.status == 0
    assert f"was there, version {SCHEMA_VERSION}" in ran.out
    assert "dramatiq.queue: was there" in ran.out
    assert execute(database_url, "SELECT id FROM pipeline.recipient") == [("7",)]


def test_init_tells_programs_what_it_did(empty_database_url: str) -> None:
    """`--json` tells the versions before and after, and whether the queue's table was made."""
    first = run("init", "--json", database_url=empty_database_url).json
    second = run("init", "--json", database_url=empty_database_url).json

    assert first["schema_version_before"] is None
    assert first["schema_version"] == SCHEMA_VERSION
    assert first["queue_created"] is True
    assert second["schema_version_before"] == SCHEMA_VERSION
    assert second["queue_created"] is False


def test_init_puts_the_queue_where_it_is_told(empty_database_url: str) -> None:
    """Schema and prefix of dramatiq-pg's table are settings."""
    where = {"queue_schema": "shop", "queue_prefix": "mail_"}

    ran = run("init", "--json", database_url=empty_database_url, **where)

    assert ran.json["queue_table"] == "shop.mail_queue"
    assert execute(empty_database_url, "SELECT count(*) FROM shop.mail_queue") == [(0,)]
    assert run("status", database_url=empty_database_url, **where).status == 0
