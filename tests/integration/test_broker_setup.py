"""The mended broker's table, keys, options and imports."""

from __future__ import annotations

import subprocess
import sys
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from dramatiq.message import Message
from dramatiq_pg import broker as stock
from dramatiq_pg import generate_init_sql
from psycopg2.pool import ThreadedConnectionPool

from pipeline.broker import PostgresBroker
from pipeline.broker.queries import LOCK_KEY, array
from pipeline.outbox import QueueTable, enqueue
from tests.support.broker import actor, mended_broker, messages, running_worker
from tests.support.postgres import execute
from tests.support.waiting import wait_until


@pytest.fixture
def url(empty_database_url: str) -> str:
    """The address of a database with dramatiq-pg's table."""
    execute(empty_database_url, generate_init_sql())
    return empty_database_url


def noop(*_: object) -> None:
    """Do nothing."""


def test_the_lock_key_is_dramatiq_pgs_own(url: str) -> None:
    """For any queue and id, SQL finds the key under which a stock consumer locks the message."""
    given: list[Message[None]] = [
        Message(queue_name, "a", (), {}, {}, message_id=message_id)
        for queue_name in ("default", "default.DQ", "ü-🎉", "50%")
        for message_id in (str(uuid.uuid4()), str(uuid.uuid4()).upper())
    ]
    with (
        mended_broker(url) as broker,
        psycopg2.connect(url) as connection,
        connection.cursor() as cursor,
    ):
        enqueue(cursor, *given, broker=broker)
        cursor.execute(f"SELECT q.message ->> 'message_id', {LOCK_KEY} FROM dramatiq.queue AS q")
        found = dict(cursor.fetchall())
    assert found == {message.message_id: stock.message_lock(message) for message in given}


def test_two_brokers_with_schemas_of_their_own_work_in_one_process(url: str) -> None:
    """Each runs its own messages, and a stock broker's SQL, a module global, is left alone."""
    before = stock.QUERIES.ENQUEUE
    execute(url, generate_init_sql("jobs", ""))
    execute(url, generate_init_sql("dramatiq", "my_"))
    ran: list[str] = []
    with (
        mended_broker(url, schema="jobs") as jobs,
        mended_broker(url, prefix="my_") as mine,
    ):

        def first() -> None:
            ran.append("jobs")

        def second() -> None:
            ran.append("mine")

        one, two = actor(jobs, first), actor(mine, second)
        one.send()
        two.send()
        assert len(messages(url, "jobs.queue")) == len(messages(url, "dramatiq.my_queue")) == 1
        with running_worker(jobs), running_worker(mine):
            wait_until(lambda: len(ran) == 2, message="both have run")
        assert jobs.queue_table == QueueTable("jobs", "queue")
    assert sorted(ran) == ["jobs", "mine"]
    assert before == stock.QUERIES.ENQUEUE


def test_prepare_makes_table_and_indexes_and_may_be_called_again(empty_database_url: str) -> None:
    """On an empty database, an old one, or with a broken index, the result is the same."""
    url = empty_database_url
    with mended_broker(url, schema='a "b"', prefix="p_") as broker:
        broker.prepare()
        broker.prepare()
        execute(
            url,
            "UPDATE pg_index SET indisvalid = false"
            ' WHERE indexrelid = \'"a ""b""".p_queue_claim\'::regclass',
        )
        broker.prepare()
    rows = execute(
        url,
        "SELECT c.relname, i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
        ' WHERE i.indrelid = \'"a ""b""".p_queue\'::regclass AND i.indpred IS NOT NULL',
    )
    assert sorted(rows) == [("p_queue_claim", True), ("p_queue_delayed", True)]


def test_indexes_are_made_without_blocking_anybody(url: str) -> None:
    """While an index is being made, behind somebody's open transaction, messages can be sent."""
    with mended_broker(url) as broker, psycopg2.connect(url) as open_transaction:
        send = actor(broker, noop).send
        open_transaction.cursor().execute("LOCK TABLE dramatiq.queue IN ROW EXCLUSIVE MODE")
        with running_worker(broker):
            wait_until(
                lambda: execute(
                    url,
                    "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX CONC%'"
                    " AND wait_event_type = 'Lock'",
                ),
                message="the making of the index waits",
            )
            send()
            wait_until(lambda: {m[1] for m in messages(url).values()} == {"done"})
            open_transaction.rollback()
            wait_until(
                lambda: execute(url, "SELECT 1 FROM pg_indexes WHERE indexname = 'queue_delayed'"),
                message="the index is made",
            )


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"wake": "shout"}, "wake must be .* got 'shout'"),
        ({"poll_interval": 0}, "poll_interval must be positive, got 0"),
        ({"look_interval": -1.5}, "look_interval must be positive, got -1.5"),
        ({"max_takeups": 0}, "max_takeups must be at least 1, got 0"),
        ({"keep_done": timedelta(days=-1)}, "negative time, got -1 day"),
        ({"pool": object(), "url": "postgresql://x"}, "both pool and URL"),
    ],
)
def test_a_bad_option_is_named(options: dict[str, Any], complaint: str) -> None:
    """What can't be is refused when the broker is made, with the value in the message."""
    with pytest.raises(ValueError, match=complaint):
        PostgresBroker(**{"middleware": [], **options})


def test_a_pool_of_the_shops_own_can_be_used(url: str) -> None:
    """With a psycopg2 pool instead of a URL everything works, and close leaves it open."""
    pool = ThreadedConnectionPool(0, 4, url)
    broker = PostgresBroker(pool=pool, middleware=[])
    ran: list[int] = []

    def note(value: int) -> None:
        ran.append(value)

    note_actor = actor(broker, note)
    note_actor.send(1)
    with running_worker(broker):
        wait_until(lambda: ran == [1])
    broker.close()
    assert not pool.closed
    pool.closeall()


def test_the_broker_imports_little(tmp_path: Path) -> None:
    """A shop that only wants the broker loads nothing of the pipeline's heavy parts."""
    code = (
        "import sys; from pipeline.broker import PostgresBroker; "
        "print(*sorted(m for m in sys.modules if m.split('.')[0] in "
        "('pipeline', 'apscheduler', 'jinja2', 'nh3', 'click', 'rich', 'starlette')))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    allowed = ("pipeline", "pipeline.outbox", "pipeline.broker")
    assert [m for m in loaded if m not in allowed and not m.startswith("pipeline.broker.")] == []


def test_array_literals_hold_any_text(url: str) -> None:
    """Quotes, backslashes, commas and braces in a queue's name survive the array's text form."""
    values = ['a"b', "c\\d", "e,f", "{g}", "", "NULL", "h'i", "ü"]
    with psycopg2.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT %s::text[]", (array(values),))
        assert cursor.fetchone() == (values,)
