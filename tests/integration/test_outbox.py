"""Messages that are sent in the caller's transaction, with whichever driver it uses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import dramatiq
import psycopg2
import pytest
from dramatiq.brokers.stub import StubBroker
from dramatiq_pg import PostgresBroker, generate_init_sql
from dramatiq_pg import broker as dramatiq_pg_broker

from pipeline.outbox import QueueTable, UnstorableMessageError, enqueue, queue_table
from tests.support.drivers import DRIVERS, Driver
from tests.support.postgres import execute
from tests.support.waiting import wait_until


@pytest.fixture
def url(empty_database_url: str) -> str:
    """The address of a database with nothing but dramatiq-pg's table."""
    execute(empty_database_url, generate_init_sql())
    return empty_database_url


@pytest.fixture
def broker(url: str) -> Iterator[PostgresBroker]:
    """A stock broker on that database, without middleware that starts things."""
    made = make_broker(url)
    yield made
    made.pool.closeall()
    dramatiq_pg_broker.QUERIES.build_queries("dramatiq", "")


def make_broker(url: str, **options: Any) -> PostgresBroker:
    dsn = psycopg2.extensions.parse_dsn(url)
    return PostgresBroker(url={**dsn, "minconn": 0}, middleware=[], results=False, **options)


def make_actor(broker: dramatiq.Broker, **options: Any) -> dramatiq.Actor[..., Any]:
    def remember(*args: Any, **kwargs: Any) -> None:
        """Never runs here: these tests look at the queue."""

    return dramatiq.actor(remember, broker=broker, **options)


def rows(url: str, table: str = "dramatiq.queue") -> list[Any]:
    return execute(
        url, f"SELECT message_id, queue_name, state::text, mtime, message FROM {table} ORDER BY 1"
    )


class Recorder:
    """A cursor that only tells what was asked of it."""

    def __init__(self) -> None:
        self.queries: list[object] = []

    def execute(self, query: object, params: object = None) -> None:
        self.queries.append(query)


@pytest.mark.parametrize("driver", DRIVERS.values(), ids=DRIVERS.keys())
def test_every_driver_writes_the_row_of_the_brokers_own_enqueue(
    url: str, broker: PostgresBroker, driver: Driver
) -> None:
    """One message sent by `enqueue` and by the broker makes the same row but for the times."""
    actor = make_actor(broker)
    message = actor.message(1, "50% %s of \\u0000 'quoted' \"ü\" 🎉 \u2028", key={"a": [1.5, None]})
    broker.enqueue(message)
    (stock,) = rows(url)
    execute(url, "DELETE FROM dramatiq.queue")

    with driver(url) as cursor:
        enqueue(cursor, message, broker=broker)

    (ours,) = rows(url)
    assert (*ours[:3], ours[4]) == (*stock[:3], stock[4])
    assert abs((ours[3] - stock[3]).total_seconds()) < 60


@pytest.mark.parametrize("driver", DRIVERS.values(), ids=DRIVERS.keys())
def test_many_messages_of_several_actors_go_in_one_statement(
    url: str, broker: PostgresBroker, driver: Driver
) -> None:
    """A thousand messages of two actors on two queues are all there, written by one execute."""
    here, there = make_actor(broker), make_actor(broker, actor_name="b", queue_name="other")
    messages = [actor.message(i) for i in range(500) for actor in (here, there)]

    with driver(url) as cursor:
        enqueue(cursor, *messages, broker=broker)

    found = {str(row[0]): row[1] for row in rows(url)}
    assert found == {message.message_id: message.queue_name for message in messages}


def test_no_messages_are_no_statement(broker: PostgresBroker) -> None:
    """With nothing to send the cursor is left alone."""
    cursor = Recorder()
    enqueue(cursor, broker=broker)
    assert cursor.queries == []


def test_a_rolled_back_transaction_leaves_nothing_and_wakes_nobody(
    url: str, broker: PostgresBroker
) -> None:
    """After a rollback there is no row and no notification; after a commit there are both."""
    actor = make_actor(broker)
    kept = actor.message("kept")
    with (
        closing(psycopg2.connect(url)) as listener,
        closing(psycopg2.connect(url)) as connection,
        connection.cursor() as cursor,
    ):
        listener.autocommit = True
        listener.cursor().execute('LISTEN "dramatiq.default.enqueue"')

        enqueue(cursor, actor.message("gone"), broker=broker)
        connection.rollback()
        enqueue(cursor, kept, broker=broker)
        connection.commit()

        def told() -> list[Any]:
            listener.poll()
            return list(listener.notifies)

        (notify,) = wait_until(told, message="a notification")
    assert json.loads(notify.payload) == {"message_id": kept.message_id}
    assert [str(row[0]) for row in rows(url)] == [kept.message_id]


def test_p04_a_long_message_is_announced_by_its_id_alone(url: str, broker: PostgresBroker) -> None:
    """A message beyond NOTIFY's 8,000 bytes commits like any other."""
    actor = make_actor(broker)
    with DRIVERS["psycopg2"](url) as cursor:
        enqueue(cursor, actor.message("x" * 100_000), broker=broker)
    assert len(rows(url)[0][4]["args"][0]) == 100_000


def test_a_delayed_message_waits_in_the_delay_queue(url: str, broker: PostgresBroker) -> None:
    """The row has dramatiq-pg's form for delays, and its eta is by the database's clock."""
    actor = make_actor(broker)
    message = actor.message(1)
    with DRIVERS["psycopg2"](url) as cursor:
        enqueue(cursor, message, delay=60_000.5, broker=broker)

    (row,) = rows(url)
    assert row[1:3] == ("default.DQ", "queued")
    ((now,),) = execute(url, "SELECT clock_timestamp()")
    eta = row[4]["options"].pop("eta")
    assert isinstance(eta, int)
    assert 0 < eta - now.timestamp() * 1000 <= 60_001
    assert row[4] == {**message.asdict(), "args": [1], "queue_name": "default.DQ", "options": {}}
    assert message.options == {}


def test_a_delay_of_zero_is_none(url: str, broker: PostgresBroker) -> None:
    """With `delay=0` the message is due at once, as with the broker's own enqueue."""
    with DRIVERS["psycopg2"](url) as cursor:
        enqueue(cursor, make_actor(broker).message(), delay=0, broker=broker)
    assert rows(url)[0][1] == "default"


def test_a_message_that_is_sent_again_goes_back_to_queued(url: str, broker: PostgresBroker) -> None:
    """A conflict is settled as dramatiq-pg does: queued, new content, new queue, old mtime."""
    message = make_actor(broker).message(1)
    with DRIVERS["psycopg2"](url) as cursor:
        enqueue(cursor, message, broker=broker)
    execute(url, "UPDATE dramatiq.queue SET state = 'done', mtime = 'epoch'")

    with DRIVERS["psycopg2"](url) as cursor:
        enqueue(cursor, message.copy(args=(2,), queue_name="other"), broker=broker)

    ((_, queue_name, state, mtime, found),) = rows(url)
    assert (queue_name, state, found["args"]) == ("other", "queued", [2])
    assert mtime == datetime.fromtimestamp(0, UTC)


def test_a_message_that_is_given_twice_is_sent_once(url: str, broker: PostgresBroker) -> None:
    """The same message twice in one call is no error, and the later one counts."""
    message = make_actor(broker).message(1)
    with DRIVERS["psycopg2"](url) as cursor:
        enqueue(cursor, message, message.copy(args=(2,)), broker=broker)
    assert [row[4]["args"] for row in rows(url)] == [[2]]


def test_middleware_sees_every_message_and_may_add_to_it(url: str, broker: PostgresBroker) -> None:
    """Both hooks run, with the delay, and options set before the write are in the row."""
    seen = []

    class Tracing(dramatiq.Middleware):
        def before_enqueue(self, broker: Any, message: Any, delay: Any) -> None:
            message.options["trace"] = "t-1"
            seen.append(("before", message.message_id, delay))

        def after_enqueue(self, broker: Any, message: Any, delay: Any) -> None:
            seen.append(("after", message.message_id, delay))

    broker.add_middleware(Tracing())
    actor = make_actor(broker)
    messages = [actor.message(i) for i in range(2)]
    ids = [message.message_id for message in messages]
    with DRIVERS["psycopg2"](url) as cursor:
        enqueue(cursor, *messages, delay=5, broker=broker)

    assert seen == [(when, one, 5) for when in ("before", "after") for one in ids]
    assert {row[4]["options"]["trace"] for row in rows(url)} == {"t-1"}


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (("ok", {"name": ["a\x00b"]}), r"args\[1\]\['name'\]\[0\] holds a NUL"),
        (("\ud800",), r"args\[0\] holds half of a surrogate"),
        (({"\x00": 1},), r"a key of args\[0\] holds a NUL"),
        ((float("nan"),), r"args\[0\] holds nan"),
        (([1.0, float("-inf")],), r"args\[0\]\[1\] holds -inf"),
    ],
)
def test_what_postgres_cannot_store_is_refused_before_the_transaction_is_touched(
    url: str, broker: PostgresBroker, args: tuple[Any, ...], complaint: str
) -> None:
    """The error names actor and argument, and the caller's work can still be committed."""
    actor = make_actor(broker, actor_name="tell")
    good = actor.message("good")
    with DRIVERS["psycopg2"](url) as cursor:
        with pytest.raises(ValueError, match="actor 'tell': " + complaint):
            enqueue(cursor, good, actor.message(*args), broker=broker)
        enqueue(cursor, good, broker=broker)
    assert [str(row[0]) for row in rows(url)] == [good.message_id]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"message_id": "order-17"}, "'order-17' is not a UUID"),
        ({"queue_name": "q" * 47}, "longer than 46 bytes"),
        ({"queue_name": "ü" * 24}, "longer than 46 bytes"),
    ],
)
def test_a_message_that_does_not_fit_the_table_is_refused(
    broker: PostgresBroker, changes: dict[str, Any], complaint: str
) -> None:
    """Ids that are no UUID and names too long for a channel are refused in words."""
    message = make_actor(broker).message().copy(**changes)
    cursor = Recorder()
    with pytest.raises(UnstorableMessageError, match=complaint):
        enqueue(cursor, message, broker=broker)
    assert cursor.queries == []


@pytest.mark.parametrize(
    ("schema", "prefix"),
    [("jobs", ""), ("dramatiq", "my_"), ('50% "odd"', "p{x}_")],
)
def test_the_brokers_schema_and_prefix_are_respected(
    url: str, broker: PostgresBroker, schema: str, prefix: str
) -> None:
    """Messages go where the broker's own enqueue would put them, whatever the name."""
    execute(url, generate_init_sql(schema, prefix))
    elsewhere = make_broker(url, schema=schema, prefix=prefix)
    message = make_actor(elsewhere).message()

    assert queue_table(elsewhere) == QueueTable(schema, f"{prefix}queue")
    with DRIVERS["psycopg2"](url) as cursor:
        enqueue(cursor, message, broker=elsewhere)

    assert [str(row[0]) for row in rows(url, str(queue_table(elsewhere)))] == [message.message_id]
    elsewhere.pool.closeall()


def test_the_global_broker_is_the_default(
    url: str, broker: PostgresBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a broker the global one is used, and none is made where there is none."""
    message = make_actor(broker).message()
    with DRIVERS["psycopg2"](url) as cursor:
        monkeypatch.setattr("dramatiq.broker.global_broker", None)
        with pytest.raises(RuntimeError, match="no broker"):
            enqueue(cursor, message)
        monkeypatch.setattr("dramatiq.broker.global_broker", broker)
        enqueue(cursor, message)
    assert len(rows(url)) == 1


def test_another_kind_of_broker_is_refused(url: str) -> None:
    """A broker that doesn't keep its messages in Postgres can't take part in a transaction."""
    stub = StubBroker()
    with DRIVERS["psycopg2"](url) as cursor, pytest.raises(TypeError, match="got StubBroker"):
        enqueue(cursor, make_actor(stub).message(), broker=stub)


def test_an_asynchronous_cursor_is_refused(broker: PostgresBroker) -> None:
    """A cursor whose execute must be awaited would silently send nothing."""

    class Cursor:
        async def execute(self, query: object, params: object = None) -> None: ...

    with pytest.raises(TypeError, match="synchronous"):
        enqueue(Cursor(), make_actor(broker).message(), broker=broker)
