"""Messages of the outbox, run by real worker processes of a stock dramatiq and dramatiq-pg."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import dramatiq
import psycopg2
import pytest
from dramatiq_pg import PostgresBroker, generate_init_sql

from pipeline.outbox import enqueue
from tests.support.broker_shop import EFFECT_TABLE
from tests.support.broker_workers import effects, states, worker
from tests.support.postgres import execute
from tests.support.waiting import wait_until


@pytest.fixture
def url(empty_database_url: str) -> str:
    """The address of a database with dramatiq-pg's table and the shop's."""
    execute(empty_database_url, generate_init_sql() + EFFECT_TABLE)
    return empty_database_url


def test_a_stock_worker_runs_what_was_committed_and_nothing_else(url: str, tmp_path: Path) -> None:
    """Plain, long and delayed messages run once each, and those of a rolled-back one never."""
    broker = PostgresBroker(
        url={**psycopg2.extensions.parse_dsn(url), "minconn": 0}, middleware=[], results=False
    )

    @dramatiq.actor(broker=broker)
    def record(value: object) -> None:
        """Runs in the worker, under the same name."""

    def run(value: object) -> bool:
        return any(row[1] == value for row in effects(url))

    with (
        worker(url, tmp_path / "log", kind="stock"),
        closing(psycopg2.connect(url)) as connection,
        connection.cursor() as cursor,
    ):
        enqueue(cursor, record.message("rolled back"), broker=broker)
        connection.rollback()
        enqueue(cursor, *[record.message(i) for i in range(20)], broker=broker)
        enqueue(cursor, record.message("ü" * 20_000), broker=broker)
        enqueue(cursor, record.message("later"), delay=300, broker=broker)
        connection.commit()
        wait_until(lambda: len(effects(url)) >= 22, timeout=20, message="22 messages run")
        wait_until(lambda: states(url) == {"done": 22}, message=lambda: str(states(url)))

    values = [row[1] for row in effects(url)]
    assert sorted(values, key=str) == sorted([*range(20), "ü" * 20_000, "later"], key=str)
