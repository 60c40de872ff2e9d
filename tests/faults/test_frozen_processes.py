"""A process that is frozen wherever it is, for as long as it likes: the others go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import psycopg2
import pytest
from apscheduler.schedulers.background import BackgroundScheduler
from dramatiq.message import Message
from dramatiq_pg.broker import message_lock

from pipeline import database
from pipeline.database import query, transaction
from pipeline.scheduling import Schedule
from tests.support.installation import Installation
from tests.support.smtp_server import Rule, ScriptedServer
from tests.support.waiting import wait_until

SILENT = timedelta(hours=1)


@contextmanager
def another(installation: Installation) -> Iterator[Installation]:
    """A second process of the same installation."""
    opened = Installation(installation.url)
    opened.set(smtp_url=installation.settings.smtp_url)
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions that say nothing for half a second are ended by the database."""
    monkeypatch.setattr(database, "IDLE_TIMEOUT", 0.5)


@contextmanager
def frozen_in_a_transaction(
    installation: Installation, name: str, **parameters: object
) -> Iterator[None]:
    """Another process has run this query in a transaction, and finds it gone when it thaws."""
    with another(installation) as frozen:
        begun = transaction(frozen.connection)
        cursor = begun.__enter__()
        cursor.execute(query(name), parameters)
        yield
        with pytest.raises(psycopg2.Error):
            cursor.execute("SELECT 'thawed'")
        assert frozen.connection.closed


@pytest.mark.usefixtures("impatient")
def test_one_frozen_while_it_rings_does_not_keep_others_from_ringing(
    installation: Installation,
) -> None:
    """The lock on ringing goes with the transaction, and that ends by the database's clock."""
    with frozen_in_a_transaction(installation, "doorbells_lock"):
        installation.notify()
        assert installation.stack().message_count == 1


@pytest.mark.usefixtures("impatient")
def test_a_scheduler_frozen_while_it_makes_a_tick_does_not_stop_the_clock(
    installation: Installation,
) -> None:
    """The other scheduler waits for the same slot's row no longer than that."""
    installation.set(stack_every=timedelta(days=1))
    schedule = Schedule(installation.url, installation.settings, installation.doorbells)
    with frozen_in_a_transaction(
        installation, "tick", schedule="stack", every=installation.settings.stack_every
    ):
        schedule.tick(installation.connection)
        assert installation.value("SELECT count(*) FROM pipeline.tick") == 1


@pytest.mark.usefixtures("impatient")
def test_a_stacker_frozen_in_its_chunk_gives_the_stacks_back(installation: Installation) -> None:
    """Its locks go with its transaction, and another pass claims what it had."""
    installation.notify()
    ann = {"receiver_id": "ann", "entity_name": "issue", "entity_identifier": "17"}
    with frozen_in_a_transaction(installation, "stack_lock", **ann):
        with transaction(installation.connection) as cursor:
            cursor.execute(query("stack_lock"), ann)
        assert installation.stack().claimed_count == 1


def fetch(worker: Installation) -> int:
    """A stock consumer takes all queued messages, as dramatiq-pg does it, and falls silent."""
    rows = worker.query("SELECT message::text FROM dramatiq.queue WHERE state = 'queued'")
    for (encoded,) in rows:
        message = Message.decode(encoded.encode())
        worker.query(
            "UPDATE dramatiq.queue SET state = 'consumed' "
            "WHERE message_id = %s AND pg_try_advisory_lock(%s)",
            (message.message_id, message_lock(message)),
        )
    return len(rows)


def grow_old(installation: Installation) -> None:
    installation.query(
        "UPDATE pipeline.doorbell SET rung_at = rung_at - %s, answered_at = answered_at - %s",
        (SILENT, SILENT),
    )


def test_doorbells_that_a_frozen_worker_has_fetched_are_rung_again(
    installation: Installation,
) -> None:
    """It lives and holds its locks, and never answers: others are called, under the same cap."""
    installation.set(senders=2, chunk=1)
    installation.notify_many(10)
    installation.stack()
    with another(installation) as frozen:
        assert fetch(frozen) == 2
        installation.recovery.ring()
        assert installation.messages() == 0, "it may be busy only"
        grow_old(installation)
        installation.recovery.ring()
        installation.recovery.ring()
        assert installation.messages() == 2


def test_a_stacker_that_is_frozen_in_its_pass_is_replaced(installation: Installation) -> None:
    """A pass is counted on as long as it shows that it goes on."""
    installation.notify(urgent=True)
    installation.recovery.ring()
    with another(installation) as frozen:
        assert fetch(frozen) == 1
        (message_id,) = installation.query("SELECT message_id::text FROM pipeline.doorbell")[0]
        with transaction(installation.connection) as cursor:
            installation.doorbells.answer(cursor, message_id)
        installation.recovery.ring()
        assert installation.messages() == 0, "its pass goes on"
        grow_old(installation)
        with transaction(installation.connection) as cursor:
            installation.doorbells.answer(cursor, message_id)
        installation.recovery.ring()
        assert installation.messages() == 0, "it has shown that it goes on"
        grow_old(installation)
        installation.recovery.ring()
        assert installation.messages() == 1


def test_with_all_workers_stopped_old_doorbells_stay_the_only_ones(
    installation: Installation,
) -> None:
    """What still hangs in the queue is heard by whoever starts: nothing is added to it."""
    installation.set(senders=2, chunk=1)
    installation.notify_many(10)
    installation.stack()
    installation.notify("p1", "99", urgent=True)
    installation.recovery.ring()
    before = installation.messages()
    grow_old(installation)
    installation.recovery.ring()
    assert installation.messages() == before == 3


def test_mail_that_waits_while_a_sender_is_stalled_calls_another(
    installation: Installation,
) -> None:
    """One mail that the relay holds back delays its own sender's chunk and nobody else."""
    with ScriptedServer([Rule("rcpt", recipient="ann@people.example", hold="gate")]) as server:
        installation.set(smtp_url=server.url, senders=2)
        installation.add_person("ann")
        installation.notify("ann")
        installation.stack()
        thread = threading.Thread(target=installation.send)
        with another(installation) as other:
            thread.start()
            server.wait_until_held("gate")
            other.query("UPDATE dramatiq.queue SET state = 'done'")
            other.query("UPDATE pipeline.doorbell SET over_at = now()")
            other.add_person("bea")
            other.notify("bea")
            other.stack()
            other.query(
                "UPDATE pipeline.delivery SET next_attempt_at = now() - interval '1 minute' "
                "WHERE state = 'queued'"
            )
            other.recovery.ring()
            assert other.messages() == 1
            server.release("gate")
            thread.join(timeout=30)


def test_P7_a_clock_that_is_set_back_does_not_stop_the_scheduler(
    installation: Installation,
) -> None:
    """What was planned by the old time would come an hour late: it is run at once, and then on."""
    schedule = Schedule(installation.url, installation.settings, installation.doorbells)
    scheduler = BackgroundScheduler(timezone="UTC")
    schedule.add_jobs(scheduler)
    scheduler.start()
    try:
        ticks = "SELECT count(*) FROM pipeline.tick"
        wait_until(lambda: installation.value(ticks) == 1)
        for job in scheduler.get_jobs():
            job.modify(next_run_time=datetime.now(UTC) + timedelta(hours=1))
        installation.query("DELETE FROM pipeline.tick")
        schedule.catch_up(scheduler)
        wait_until(lambda: installation.value(ticks) == 1, message="a tick")
        schedule.catch_up(scheduler)
        ahead = [job.next_run_time - datetime.now(UTC) for job in scheduler.get_jobs()]
        assert max(ahead) <= timedelta(minutes=10)
    finally:
        scheduler.shutdown()
        schedule.close()
