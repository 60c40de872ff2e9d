"""`notify` with every driver: in the caller's transaction, or not at all."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from enum import Enum
from typing import Any

import dramatiq.broker
import psycopg2
import pytest
from dramatiq import Broker, Message, Middleware
from dramatiq.brokers.stub import StubBroker
from dramatiq_pg import PostgresBroker, generate_init_sql
from dramatiq_pg import broker as dramatiq_pg_broker

from pipeline import notify
from tests.support.drivers import DRIVERS, Driver
from tests.support.installation import Installation
from tests.support.postgres import execute

CHANGE = {"verb": "updated", "field": "state", "old_value": "Doing", "new_value": "Dönë 完 100 %s"}


@pytest.fixture(params=list(DRIVERS.values()), ids=list(DRIVERS))
def driver(request: pytest.FixtureRequest) -> Driver:
    """Every driver in turn."""
    chosen: Driver = request.param
    return chosen


def stock_broker(url: str, **options: Any) -> PostgresBroker:
    return PostgresBroker(
        url={**psycopg2.extensions.parse_dsn(url), "minconn": 0},
        middleware=[],
        results=False,
        **options,
    )


@pytest.fixture
def broker(database_url: str) -> Iterator[PostgresBroker]:
    """A shop's broker on dramatiq-pg's usual table."""
    made = stock_broker(database_url)
    yield made
    made.pool.closeall()
    dramatiq_pg_broker.QUERIES.build_queries("dramatiq", "")


def say(cursor: Any, **changes: Any) -> str:
    given = {"receiver": "42", "triggered_by": "7", "entity": ("issue", "17"), "data": CHANGE}
    return notify(cursor, **(given | changes))


def rows(url: str) -> list[tuple[Any, ...]]:
    return execute(
        url,
        "SELECT id::text, receiver_id, triggered_by_id, entity_name, entity_identifier, data,"
        " urgent FROM pipeline.email_notification_log ORDER BY created_at, id",
    )


def bells(url: str, table: str = "dramatiq.queue") -> list[Any]:
    """The messages in the queue; each has its doorbell."""
    found = execute(url, f"SELECT message_id, message FROM {table} WHERE state = 'queued'")
    rung = execute(url, "SELECT message_id FROM pipeline.doorbell WHERE over_at IS NULL")
    assert sorted(id_ for (id_,) in rung) == sorted(id_ for id_, _ in found)
    return [message for _, message in found]


def test_a_notification_is_written_by_every_driver(database_url: str, driver: Driver) -> None:
    """What is given stands in the row, of any alphabet, and its id is given back."""
    with driver(database_url) as cursor:
        id_ = say(cursor)
        other = say(cursor, receiver="ü" * 3, triggered_by=None, data={})
    assert {row[0]: row[1:] for row in rows(database_url)} == {
        id_: ("42", "7", "issue", "17", CHANGE, False),
        other: ("üüü", None, "issue", "17", {}, False),
    }


def test_a_rolled_back_transaction_leaves_nothing(
    database_url: str, broker: Broker, driver: Driver
) -> None:
    """Neither the row nor the call for a stacker outlives the transaction."""

    def fail() -> None:
        with driver(database_url) as cursor:
            say(cursor, urgent=True, broker=broker)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert rows(database_url) == []
    assert bells(database_url) == []


def test_an_urgent_one_rings_in_the_same_transaction(
    database_url: str, broker: Broker, driver: Driver
) -> None:
    """The call for a stacker is committed with the row, once however many there are."""
    with driver(database_url) as cursor:
        for number in range(3):
            say(cursor, receiver=str(number), urgent=True, broker=broker)
        say(cursor, receiver="3", broker=broker)
        assert bells(database_url) == []
    assert sorted(row[6] for row in rows(database_url)) == [False, True, True, True]
    (message,) = bells(database_url)
    assert message["actor_name"] == "pipeline.stack"
    assert message["queue_name"] == "pipeline"
    assert (message["args"], message["kwargs"]) == ([], {})


def test_a_thousand_urgent_ones_leave_one_message(database_url: str, broker: Broker) -> None:
    """However many commit, there is at most one doorbell that nobody has answered."""
    with closing(psycopg2.connect(database_url)) as connection, connection.cursor() as cursor:
        for number in range(1000):
            say(cursor, receiver=str(number), urgent=True, broker=broker)
            connection.commit()
    assert len(rows(database_url)) == 1000
    assert len(bells(database_url)) == 1


def test_it_rings_again_once_the_last_call_was_answered(
    installation: Installation, broker: Broker
) -> None:
    """A call that is being answered may have missed the row: another one is made."""
    for expected in (1, 2):
        with closing(psycopg2.connect(installation.url)) as connection, connection:
            say(connection.cursor(), urgent=True, broker=broker)
        assert installation.messages() == expected
        installation.query("UPDATE pipeline.doorbell SET answered_at = now()")


def test_without_a_broker_the_scheduler_sees_it(installation: Installation) -> None:
    """Nothing is rung, and recovery calls a stacker for the committed row."""
    with closing(psycopg2.connect(installation.url)) as connection, connection:
        say(connection.cursor(), urgent=True)
    assert bells(installation.url) == []
    installation.recovery.run()
    (message,) = bells(installation.url)
    assert message["actor_name"] == "pipeline.stack"


@pytest.fixture
def global_broker() -> Iterator[None]:
    """Puts the global broker back as it was."""
    before = dramatiq.broker.global_broker
    yield
    dramatiq.broker.global_broker = before


@pytest.mark.usefixtures("global_broker")
def test_the_global_broker_is_rung_at_if_none_is_given(database_url: str, broker: Broker) -> None:
    """As with Dramatiq's own `send`."""
    dramatiq.set_broker(broker)
    with closing(psycopg2.connect(database_url)) as connection, connection:
        say(connection.cursor(), urgent=True)
    assert len(bells(database_url)) == 1


@pytest.mark.usefixtures("global_broker")
def test_a_global_broker_elsewhere_is_left_alone(database_url: str) -> None:
    """A shop whose other jobs go through Redis, or another database, notifies all the same."""
    dramatiq.set_broker(StubBroker(middleware=[]))
    with closing(psycopg2.connect(database_url)) as connection, connection:
        say(connection.cursor(), urgent=True)
    elsewhere = stock_broker(database_url, schema="elsewhere", prefix="their_")
    try:
        dramatiq.set_broker(elsewhere)
        with closing(psycopg2.connect(database_url)) as connection, connection:
            say(connection.cursor(), urgent=True)
    finally:
        elsewhere.pool.closeall()
        dramatiq_pg_broker.QUERIES.build_queries("dramatiq", "")
    assert len(rows(database_url)) == 2
    assert bells(database_url) == []


def test_a_schema_and_prefix_of_the_shops_own(database_url: str) -> None:
    """It rings in the table where the shop's workers listen."""
    execute(database_url, generate_init_sql("Shop jobs", "my_"))
    broker = stock_broker(database_url, schema="Shop jobs", prefix="my_")
    try:
        with closing(psycopg2.connect(database_url)) as connection, connection:
            say(connection.cursor(), urgent=True, broker=broker)
    finally:
        broker.pool.closeall()
        dramatiq_pg_broker.QUERIES.build_queries("dramatiq", "")
    assert len(bells(database_url, '"Shop jobs".my_queue')) == 1


def test_the_shops_middleware_sees_the_call(database_url: str, broker: Broker) -> None:
    """As with any message of the broker's."""
    seen = []

    class Watching(Middleware):
        def before_enqueue(self, broker: Broker, message: Message[Any], delay: Any) -> None:
            seen.append(("before", message.actor_name))

        def after_enqueue(self, broker: Broker, message: Message[Any], delay: Any) -> None:
            seen.append(("after", message.actor_name))

    broker.add_middleware(Watching())
    with closing(psycopg2.connect(database_url)) as connection, connection:
        say(connection.cursor(), urgent=True, broker=broker)
        say(connection.cursor(), urgent=True, broker=broker)
    assert seen == [("before", "pipeline.stack"), ("after", "pipeline.stack")]


def test_H04_what_postgres_cannot_store_is_cleaned(database_url: str, driver: Driver) -> None:
    """A stray character in what a person typed loses nobody's notification."""
    data = {
        "new_value": "a\r\nBcc: x@y\x00\ud800z",
        "k\x00": ["b\u2028\udfff", {"c": "\U0001f600"}],
    }
    with driver(database_url) as cursor:
        say(cursor, data=data)
    assert rows(database_url)[0][5] == {
        "new_value": "a\r\nBcc: x@y\ufffd\ufffdz",
        "k\ufffd": ["b\u2028\ufffd", {"c": "\U0001f600"}],
    }


class Untouchable:
    """A cursor that must not be used."""

    def execute(self, query: object, params: object = None) -> None:
        raise AssertionError("touched")

    def fetchone(self) -> None:
        raise AssertionError("touched")


def circular() -> dict[str, Any]:
    data: dict[str, Any] = {}
    data["self"] = [data]
    return data


@pytest.mark.parametrize(
    ("changes", "kind", "told"),
    [
        ({"receiver": 42}, TypeError, "receiver must be a text, got 42"),
        ({"receiver": None}, TypeError, "receiver must be a text, got None"),
        ({"receiver": ""}, ValueError, "receiver must be a text that Postgres can store, got ''"),
        ({"receiver": "4\x002"}, ValueError, r"receiver .* got '4\\x002'"),
        ({"receiver": "ü" * 401}, ValueError, "receiver must have at most 800 bytes, got 'üüü"),
        ({"triggered_by": 7}, TypeError, "triggered_by must be a text, got 7"),
        ({"triggered_by": "\ud800"}, ValueError, r"triggered_by .* got '\\ud800'"),
        ({"entity": "issue"}, TypeError, "entity must be a pair of kind and identity, got 'issue'"),
        ({"entity": ("issue",)}, TypeError, r"entity must be a pair .* got \('issue',\)"),
        ({"entity": ("issue", 17)}, TypeError, "entity's identity must be a text, got 17"),
        ({"entity": ("", "17")}, ValueError, "entity's kind must be a text .* got ''"),
        ({"data": None}, TypeError, "data must be a mapping, got None"),
        ({"data": "text"}, TypeError, "data must be a mapping, got 'text'"),
        ({"data": {"at": uuid.UUID(int=1)}}, TypeError, r"data\['at'\] must be .* got UUID\("),
        ({"data": {"a": [1, {2, 3}]}}, TypeError, r"data\['a'\]\[1\] must be .* got \{2, 3\}"),
        ({"data": {"a": float("nan")}}, ValueError, r"data\['a'\] must be a number .* got nan"),
        ({"data": {"a": 10**5000}}, ValueError, r"data\['a'\] is too large a number"),
        ({"data": {(1, 2): 3}}, TypeError, r"the keys of data must be texts, got \(1, 2\)"),
        ({"data": circular()}, ValueError, "data is nested too deeply, or holds itself"),
        ({"urgent": "no"}, TypeError, "urgent must be True or False, got 'no'"),
        (
            {"urgent": True, "broker": StubBroker(middleware=[])},
            TypeError,
            "a dramatiq-pg broker is needed, got StubBroker",
        ),
    ],
)
def test_bad_input_is_named_before_the_transaction_is_touched(
    changes: dict[str, Any], kind: type[Exception], told: str
) -> None:
    """The error says which argument and what it was; the caller's transaction goes on."""
    with pytest.raises(kind, match=told):
        say(Untouchable(), **changes)


def test_only_a_cursor_will_do(database_url: str) -> None:
    """Connections, asynchronous and named cursors are told apart from cursors at once."""
    with closing(psycopg2.connect(database_url)) as connection:
        with pytest.raises(TypeError, match="needs a DB-API cursor, got connection"):
            say(connection)
        with pytest.raises(TypeError, match="client-side cursor, got cursor with a name"):
            say(connection.cursor("mine"))

    class AsyncCursor(Untouchable):
        async def execute(self, query: object, params: object = None) -> None:  # type: ignore[override]
            raise AssertionError("touched")

    with pytest.raises(TypeError, match="synchronous cursor, got AsyncCursor"):
        say(AsyncCursor())


def test_ids_may_come_from_an_enumeration(database_url: str, driver: Driver) -> None:
    """A subclass of text is written as the text that it is."""

    class Kind(str, Enum):  # noqa: UP042 -- its str() is not its value, unlike a StrEnum's
        ISSUE = "issue"

    with driver(database_url) as cursor:
        say(cursor, entity=(Kind.ISSUE, "17"), data={"field": Kind.ISSUE})
    (row,) = rows(database_url)
    assert row[3] == "issue"
    assert row[5] == {"field": "issue"}
