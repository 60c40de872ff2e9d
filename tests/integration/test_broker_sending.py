"""What the mended broker sends: in the caller's transaction, or once in one of its own."""

from __future__ import annotations

import asyncio
import contextvars
import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import dramatiq
import psycopg2
import pytest
from dramatiq.errors import ConnectionError as DramatiqConnectionError
from dramatiq.message import Message
from dramatiq_pg import generate_init_sql

from pipeline.broker import PostgresBroker
from pipeline.broker.pool import BoundedPool
from pipeline.outbox import UnstorableMessageError, enqueue
from tests.support.broker import actor, mended_broker, messages
from tests.support.postgres import execute


@pytest.fixture
def url(empty_database_url: str) -> str:
    """The address of a database with dramatiq-pg's table."""
    execute(empty_database_url, generate_init_sql())
    return empty_database_url


@pytest.fixture
def broker(url: str) -> Iterator[PostgresBroker]:
    """A mended broker on it."""
    with mended_broker(url) as made:
        yield made


@pytest.fixture
def shop(url: str) -> Iterator[psycopg2.extensions.connection]:
    """A connection of the shop's own."""
    with closing(psycopg2.connect(url)) as connection:
        yield connection


@pytest.fixture
def work(broker: PostgresBroker) -> dramatiq.Actor[..., Any]:
    """An actor."""
    return actor(broker, noop)


def noop(*_: object) -> None:
    """Do nothing."""


def sent(url: str) -> list[Any]:
    """The first arguments of the messages in the table."""
    return sorted(m[2]["args"][0] for m in messages(url).values())


def test_everything_that_is_sent_in_a_block_joins_the_transaction(
    url: str,
    broker: PostgresBroker,
    shop: psycopg2.extensions.connection,
    work: dramatiq.Actor[..., Any],
) -> None:
    """send, send_with_options, groups and pipelines appear with the commit, and not before."""
    with broker.transaction(shop.cursor()):
        work.send(1)
        work.send_with_options(args=(2,), delay=60_000)
        dramatiq.group([work.message(3), work.message(4)], broker=broker).run()
        dramatiq.pipeline([work.message(5), work.message(6)], broker=broker).run()
    assert messages(url) == {}
    shop.commit()
    assert sent(url) == [1, 2, 3, 4, 5]
    assert {m[0] for m in messages(url).values()} == {"default", "default.DQ"}


def test_a_rolled_back_block_sends_nothing(
    url: str,
    broker: PostgresBroker,
    shop: psycopg2.extensions.connection,
    work: dramatiq.Actor[..., Any],
) -> None:
    """Neither a rollback nor one to a savepoint leaves a message, and what is outside stays."""
    cursor = shop.cursor()
    with suppress(ZeroDivisionError), shop, broker.transaction(cursor):
        work.send("gone")
        raise ZeroDivisionError
    with shop, broker.transaction(cursor):
        work.send("kept")
        cursor.execute("SAVEPOINT here")
        work.send("gone")
        cursor.execute("ROLLBACK TO here")
    assert sent(url) == ["kept"]


def test_middleware_that_sends_joins_too(
    url: str,
    broker: PostgresBroker,
    shop: psycopg2.extensions.connection,
    work: dramatiq.Actor[..., Any],
) -> None:
    """What an `after_enqueue` hook sends is rolled back with the message that it follows."""

    class Echo(dramatiq.Middleware):
        def after_enqueue(self, broker: Any, message: Any, delay: Any) -> None:
            if message.args == ("call",):
                work.send("echo")

    broker.add_middleware(Echo())
    with broker.transaction(shop.cursor()):
        work.send("call")
    shop.rollback()
    assert sent(url) == []
    with shop, broker.transaction(shop.cursor()):
        work.send("call")
    assert sent(url) == ["call", "echo"]


def test_blocks_may_be_nested(
    url: str,
    broker: PostgresBroker,
    shop: psycopg2.extensions.connection,
    work: dramatiq.Actor[..., Any],
) -> None:
    """The innermost open block counts, and after it the one around it again."""
    with closing(psycopg2.connect(url)) as other:
        with broker.transaction(shop.cursor()):
            work.send("outer")
            with broker.transaction(other.cursor()):
                work.send("inner")
            work.send("outer again")
        shop.rollback()
        other.commit()
    assert sent(url) == ["inner"]


def test_other_threads_are_not_in_the_block(
    url: str,
    broker: PostgresBroker,
    shop: psycopg2.extensions.connection,
    work: dramatiq.Actor[..., Any],
) -> None:
    """A thread that merely runs at the same time sends on its own."""
    with broker.transaction(shop.cursor()):
        thread = threading.Thread(target=work.send, args=("elsewhere",))
        thread.start()
        thread.join()
    shop.rollback()
    assert sent(url) == ["elsewhere"]


def test_an_inherited_block_ends_for_everyone(
    url: str,
    broker: PostgresBroker,
    shop: psycopg2.extensions.connection,
    work: dramatiq.Actor[..., Any],
) -> None:
    """A thread with the block's context joins while it is open, and sends on its own afterwards."""
    with broker.transaction(shop.cursor()):
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(work.send, "in the block"))
        thread.start()
        thread.join()
    context.run(work.send, "after it")
    shop.rollback()
    assert sent(url) == ["after it"]


def test_tasks_have_blocks_of_their_own(
    url: str, broker: PostgresBroker, work: dramatiq.Actor[..., Any]
) -> None:
    """Two tasks that take turns inside their blocks send each with its own cursor."""

    async def task(name: str, mine: threading.Event | asyncio.Event, ends: str) -> None:
        with closing(psycopg2.connect(url)) as connection:
            with broker.transaction(connection.cursor()):
                work.send(f"{name} 1")
                await asyncio.sleep(0)
                work.send(f"{name} 2")
            getattr(connection, ends)()

    async def both() -> None:
        event = asyncio.Event()
        await asyncio.gather(task("a", event, "commit"), task("b", event, "rollback"))

    asyncio.run(both())
    assert sent(url) == ["a 1", "a 2"]


def test_autocommit_is_refused(
    url: str, broker: PostgresBroker, shop: psycopg2.extensions.connection
) -> None:
    """A block on a connection that commits every statement would promise what it can't keep."""
    shop.autocommit = True
    with pytest.raises(RuntimeError, match="autocommit"), broker.transaction(shop.cursor()):
        pass
    shop.cursor().execute("BEGIN")
    with broker.transaction(shop.cursor()):
        pass


def test_the_outbox_knows_the_brokers_table(url: str, shop: psycopg2.extensions.connection) -> None:
    """`pipeline.outbox.enqueue` writes where a mended broker with a schema and prefix looks."""
    execute(url, generate_init_sql("jobs", "p_"))
    with mended_broker(url, schema="jobs", prefix="p_") as broker:
        enqueue(shop.cursor(), actor(broker, noop).message("here"), broker=broker)
        shop.commit()
    assert len(messages(url, "jobs.p_queue")) == 1


def test_a_delay_is_by_the_databases_clock(
    url: str, broker: PostgresBroker, work: dramatiq.Actor[..., Any], monkeypatch: Any
) -> None:
    """The sender's clock may be years off: the eta in the row is right."""
    monkeypatch.setattr("pipeline.outbox.current_millis", lambda: 0)
    work.send_with_options(args=(1,), delay=5000)
    ((now,),) = execute(url, "SELECT extract(epoch FROM clock_timestamp()) * 1000")
    ((_, _, message),) = messages(url).values()
    assert 0 < message["options"]["eta"] - float(now) <= 5000


@pytest.mark.parametrize("value", ["a\x00b", "\udfff", float("nan"), {"k": ["\x00"]}])
def test_arguments_that_postgres_cannot_store_are_refused_at_once(
    url: str, broker: PostgresBroker, work: dramatiq.Actor[..., Any], value: object
) -> None:
    """No minute of retries: a ValueError that names actor and argument, and nothing is written."""
    with pytest.raises(UnstorableMessageError, match=r"actor 'noop': .*args\[0\]"):
        work.send(value)
    assert messages(url) == {}


def test_a_send_whose_commit_got_lost_is_not_repeated(
    url: str, broker: PostgresBroker, work: dramatiq.Actor[..., Any], monkeypatch: Any
) -> None:
    """If the connection ends after the commit and before its answer, the message is sent once."""
    execute(url, "CREATE TABLE written (id uuid)")
    execute(
        url,
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO written VALUES (NEW.message_id); RETURN NEW; END $$",
    )
    execute(
        url,
        "CREATE TRIGGER note AFTER INSERT OR UPDATE ON dramatiq.queue"
        " FOR EACH ROW EXECUTE FUNCTION note()",
    )
    real = BoundedPool.transaction
    answers = iter(["lost"])

    @contextmanager
    def transaction(self: Any, *args: Any) -> Iterator[Any]:
        with real(self, *args) as cursor:
            yield cursor
        if next(answers, None) == "lost":
            raise psycopg2.OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(BoundedPool, "transaction", transaction)
    work.send(1)
    assert len(execute(url, "SELECT * FROM written")) == 1


def test_threads_wait_for_a_connection(url: str) -> None:
    """Twenty threads on three connections all send; none is turned away, none too many opened."""
    with mended_broker(url, maxconn=3) as broker:
        work = actor(broker, noop)
        most = []

        def send_some() -> None:
            for i in range(10):
                work.send(i)

        threads = [threading.Thread(target=send_some) for _ in range(20)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            ((count,),) = execute(
                url,
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name = 'dramatiq-pg'",
            )
            most.append(count)
    assert len(messages(url)) == 200
    assert max(most) <= 3


def test_wake_by_polling_sends_no_notification(url: str) -> None:
    """With `wake="poll"` nothing takes NOTIFY's lock, neither sends nor the outbox."""
    with (
        mended_broker(url, wake="poll") as broker,
        closing(psycopg2.connect(url)) as listener,
        closing(psycopg2.connect(url)) as shop,
    ):
        listener.autocommit = True
        listener.cursor().execute('LISTEN "dramatiq.default.enqueue"')
        work = actor(broker, noop)
        work.send(1)
        enqueue(shop.cursor(), work.message(2), broker=broker)
        shop.commit()
        execute(url, "NOTIFY \"dramatiq.default.enqueue\", 'end'")
        while not listener.notifies:
            listener.poll()
    assert [notify.payload for notify in listener.notifies] == ["end"]
    assert sent(url) == [1, 2]


def test_a_notification_carries_the_id(
    url: str, broker: PostgresBroker, work: dramatiq.Actor[..., Any]
) -> None:
    """Listeners, stock ones too, get the form that dramatiq-pg uses for long messages."""
    with closing(psycopg2.connect(url)) as listener:
        listener.autocommit = True
        listener.cursor().execute('LISTEN "dramatiq.default.enqueue"')
        message: Message[Any] = work.send("x" * 9000)
        while not listener.notifies:
            listener.poll()
    assert json.loads(listener.notifies[0].payload) == {"message_id": message.message_id}


def test_a_send_whose_commit_hangs_is_not_waited_for_for_ever(
    url: str, shop: psycopg2.extensions.connection, broker: PostgresBroker
) -> None:
    """It may stay undecided for hours, when a standby is away: the sender is told so."""
    with shop.cursor() as cursor:
        cursor.execute("SELECT pg_current_xact_id()::text")
        (transaction_id,) = cursor.fetchone() or ("",)
    sender = broker._sender
    with pytest.raises(DramatiqConnectionError, match=f"transaction {transaction_id} commits"):
        sender._has_committed(transaction_id, time.monotonic() + 0.2)
    shop.commit()
    assert sender._has_committed(transaction_id, time.monotonic() + 0.2)
