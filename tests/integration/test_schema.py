"""`schema.sql`: applied again, at once, over an older version, beside a shop's own views."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import psycopg2
import pytest

from pipeline.database import connect, init, schema_version
from pipeline.embedded.binaries import find_binaries
from tests.support.postgres import execute

SCHEMA = Path(__file__).resolve().parents[2] / "schema.sql"

CONTRACT = {
    "email_notification_log": "id receiver_id triggered_by_id entity_name entity_identifier data "
    "urgent created_at processed_at sent_at delivery_id",
    "recipient": "id email display_name locale time_zone active",
    "entity": "entity_name entity_identifier reference title url",
    "delivery": "id receiver_id entity_name entity_identifier state reason attempt_count "
    "attempt_token next_attempt_at lease_expires_at message_id notification_count created_at "
    "sent_at updated_at",
    "delivery_attempt": "delivery_id attempt_number worker started_at finished_at stage smtp_code "
    "enhanced_code reply error outcome",
}


def test_every_table_and_column_of_the_contract_is_there(database_url: str) -> None:
    """Others build on these names."""
    for table, columns in CONTRACT.items():
        found = execute(
            database_url,
            "SELECT column_name FROM information_schema.columns "
            "WHERE table_schema = 'pipeline' AND table_name = %s",
            (table,),
        )
        assert set(columns.split()) <= {name for (name,) in found}, table


def test_every_table_and_column_has_a_comment(database_url: str) -> None:
    """The schema explains itself in psql."""
    assert (
        execute(
            database_url,
            """
            SELECT c.relname, a.attname
            FROM pg_class c
            JOIN pg_namespace n ON n.oid = c.relnamespace
            LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
            WHERE n.nspname = 'pipeline' AND c.relkind IN ('r', 'v') AND NOT a.attisdropped
                AND (obj_description(c.oid, 'pg_class') IS NULL
                    OR col_description(c.oid, a.attnum) IS NULL)
            """,
        )
        == []
    )


def test_it_can_be_applied_again_and_keeps_what_is_there(database_url: str) -> None:
    """Rows survive, and no second version is recorded."""
    execute(
        database_url,
        "INSERT INTO pipeline.email_notification_log "
        "(receiver_id, entity_name, entity_identifier, data) VALUES ('1', 'issue', '2', '{}')",
    )
    connection = connect(database_url)
    for _ in range(2):
        init(connection)
    assert schema_version(connection) == 1
    connection.close()
    assert execute(database_url, "SELECT count(*) FROM pipeline.email_notification_log") == [(1,)]


def test_several_processes_may_apply_it_at_once(empty_database_url: str) -> None:
    """They wait for each other; dramatiq-pg's part, which can't be repeated, is made once."""
    barrier = threading.Barrier(6)
    errors: list[BaseException] = []

    def apply() -> None:
        connection = connect(empty_database_url)
        try:
            barrier.wait(timeout=30)
            init(connection)
        except BaseException as error:  # noqa: BLE001 - told below
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=apply) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert errors == []
    assert execute(empty_database_url, "SELECT count(*) FROM dramatiq.queue") == [(0,)]


def test_psql_applies_it_too(empty_database_url: str) -> None:
    """The file needs nothing but a client."""
    psql = find_binaries().folder / "psql"
    for _ in range(2):
        done = subprocess.run(
            [str(psql), empty_database_url, "-v", "ON_ERROR_STOP=1", "-q", "-f", str(SCHEMA)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
    assert execute(empty_database_url, "SELECT max(version) FROM pipeline.schema_version") == [(1,)]


def test_views_of_a_shop_are_left_alone(empty_database_url: str) -> None:
    """`recipient` and `entity` may be views over the shop's own tables."""
    execute(
        empty_database_url,
        "CREATE SCHEMA pipeline; CREATE TABLE users (id int, mail text, name text, tz text);"
        "INSERT INTO users VALUES (7, 'ann@shop.example', 'Ann', 'Europe/Paris');"
        "CREATE VIEW pipeline.recipient AS SELECT id::text AS id, mail AS email, "
        "name AS display_name, NULL::text AS locale, tz AS time_zone, true AS active FROM users",
    )
    connection = connect(empty_database_url)
    init(connection)
    init(connection)
    connection.close()
    assert execute(empty_database_url, "SELECT email FROM pipeline.recipient") == [
        ("ann@shop.example",)
    ]


@pytest.mark.parametrize("column", ["receiver_id", "entity_name", "entity_identifier", "data"])
def test_rows_without_what_is_needed_are_refused(database_url: str, column: str) -> None:
    """The producer learns at once, and the error names the column."""
    values = {"receiver_id": "1", "entity_name": "issue", "entity_identifier": "2", "data": "{}"}
    values.pop(column)
    names = ", ".join(values)
    with pytest.raises(psycopg2.errors.NotNullViolation) as caught:
        execute(
            database_url,
            f"INSERT INTO pipeline.email_notification_log ({names}) VALUES (%s, %s, %s)",
            tuple(values.values()),
        )
    assert column in str(caught.value)


def test_ids_too_long_for_an_index_are_refused_by_name(database_url: str) -> None:
    """Rather than by an error about index pages."""
    with pytest.raises(psycopg2.errors.CheckViolation) as caught:
        execute(
            database_url,
            "INSERT INTO pipeline.email_notification_log "
            "(receiver_id, entity_name, entity_identifier, data) "
            "VALUES (repeat('x', 801), 'issue', '2', '{}')",
        )
    assert "receiver_id_is_at_most_800_bytes" in str(caught.value)
