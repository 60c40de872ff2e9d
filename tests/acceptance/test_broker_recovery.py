"""Workers that are killed, frozen or cut off, as real processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from dramatiq_pg import generate_init_sql

from pipeline.broker import PostgresBroker
from tests.support.broker import advisory_lock_count, mended_broker, messages
from tests.support.broker_shop import EFFECT_TABLE
from tests.support.broker_workers import effects, sender, states, times, worker
from tests.support.postgres import execute
from tests.support.waiting import stays_true, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def url(empty_database_url: str) -> str:
    """The address of a database with dramatiq-pg's table and the shop's."""
    execute(empty_database_url, generate_init_sql() + EFFECT_TABLE)
    return empty_database_url


@pytest.fixture
def broker(url: str) -> Iterator[PostgresBroker]:
    """A mended broker to send with."""
    with mended_broker(url) as made:
        yield made


def cut_sessions(url: str, pid: int | None = None) -> None:
    """End every connection of the brokers, or those of the consumer's session only."""
    execute(
        url,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE 'dramatiq-pg%%'",
    )


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_a_killed_workers_messages_are_back_within_seconds(
    url: str, broker: PostgresBroker, tmp_path: Path, busy: bool
) -> None:
    """Whether the survivor is idle or has more than enough to do, it takes them up."""
    slow, record = sender(broker, "slow"), sender(broker, "record")
    with worker(url, tmp_path / "first", threads=2) as first:
        for i in range(2):
            slow.send(60, i)
        wait_until(lambda: len(effects(url, "start")) == 2)
        with worker(url, tmp_path / "second", threads=4):
            if busy:
                for _ in range(3000):
                    record.send("load")
            first.kill()
            wait_until(lambda: len(effects(url, "start")) == 4, timeout=5)
    assert times(url, "start") == {0: 2, 1: 2}


def test_d07_a_message_that_kills_its_worker_ends_rejected(
    url: str, broker: PostgresBroker, tmp_path: Path
) -> None:
    """Each death is counted when the message is taken up; after the cap it is put aside."""
    kill, record = sender(broker, "kill"), sender(broker, "record")
    message = kill.send()
    innocent = [record.send(i) for i in range(5)]
    options = {"max_takeups": 2}
    for attempt in range(12):
        if messages(url)[message.message_id][1] == "rejected":
            break
        with worker(url, tmp_path / f"log-{attempt}", options=options) as started:
            wait_until(
                lambda started=started: (
                    started.process.poll() is not None  # type: ignore[misc]
                    or messages(url)[message.message_id][1] == "rejected"
                ),
                timeout=20,
            )
    assert messages(url)[message.message_id][1] == "rejected"
    assert len(effects(url, "kill")) == 3
    with worker(url, tmp_path / "last", options=options):
        wait_until(lambda: states(url) == {"done": 5, "rejected": 1}, timeout=20)
    assert {row[1] for row in effects(url, "record")} == set(range(len(innocent)))


def test_d08_a_frozen_worker_cannot_settle_what_another_has_taken(
    url: str, broker: PostgresBroker, tmp_path: Path
) -> None:
    """Cut off while frozen, it wakes up, finishes, and its ack changes nothing."""
    message = sender(broker, "slow").send(4, "work")
    with worker(url, tmp_path / "frozen", threads=1) as frozen:
        wait_until(lambda: len(effects(url, "start")) == 1)
        frozen.signal_group(signal.SIGSTOP)
        cut_sessions(url)
        with worker(url, tmp_path / "second", threads=1):
            wait_until(lambda: len(effects(url, "start")) == 2, timeout=10)
            frozen.signal_group(signal.SIGCONT)
            # The first one finishes long before the second: its row must stay the second's.
            wait_until(lambda: len(effects(url, "end")) >= 1, timeout=10)
            state = messages(url)[message.message_id][1]
            if len(effects(url, "end")) == 1:
                assert state == "consumed"
            wait_until(lambda: len(effects(url, "end")) == 2, timeout=10)
            wait_until(lambda: states(url) == {"done": 1})
        assert "taken up by another" in frozen.text()


def test_cut_connections_are_replaced_and_nothing_runs_twice(
    url: str, broker: PostgresBroker, tmp_path: Path
) -> None:
    """Under load, with every connection ended again and again, each message runs once in full."""
    slow = sender(broker, "slow")
    with (
        worker(url, tmp_path / "a", threads=4) as first,
        worker(url, tmp_path / "b", threads=4) as second,
    ):
        for i in range(120):
            slow.send(0.1, i)
        for _ in range(6):
            time.sleep(0.4)
            cut_sessions(url)
        wait_until(
            lambda: states(url) == {"done": 120}, timeout=40, message=lambda: str(states(url))
        )
        wait_until(lambda: advisory_lock_count(url) == 0)
        started = times(url, "start")
        lost = (first.text() + second.text()).count("taken up by another")
    assert set(started) == set(range(120))
    assert sum(started.values()) - 120 <= lost


def test_a_process_never_runs_a_message_beside_itself(
    url: str, broker: PostgresBroker, tmp_path: Path
) -> None:
    """A long message outlives the loss of its lock: the process takes it back and runs it once."""
    slow = sender(broker, "slow")
    slow.send(4, "long")
    with worker(url, tmp_path / "log", threads=4):
        wait_until(lambda: len(effects(url, "start")) == 1)
        for _ in range(3):
            cut_sessions(url)
            wait_until(lambda: advisory_lock_count(url) == 1, message="it has taken it back")
        wait_until(lambda: states(url) == {"done": 1}, timeout=15)
    assert [row[0] for row in effects(url)] == ["start", "end"]


def test_sigterm_finishes_what_runs_and_gives_the_rest_to_others(
    url: str, broker: PostgresBroker, tmp_path: Path
) -> None:
    """A stopping worker ends its running messages; the ones in memory run elsewhere at once."""
    slow = sender(broker, "slow")
    for i in range(8):
        slow.send(0.6, i)
    with worker(url, tmp_path / "first", threads=2) as first:
        wait_until(lambda: len(effects(url, "start")) == 2)
        assert first.terminate() == 0
    assert advisory_lock_count(url) == 0
    assert set(states(url)) == {"done", "queued"}
    with worker(url, tmp_path / "second", threads=4):
        wait_until(lambda: states(url) == {"done": 8}, timeout=15)
    assert times(url, "start") == times(url, "end") == dict.fromkeys(range(8), 1)


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_delayed_messages_outlive_every_worker(
    url: str, broker: PostgresBroker, tmp_path: Path, ending: signal.Signals
) -> None:
    """Delayed messages are held by nobody: they run wherever somebody is left."""
    record = sender(broker, "record")
    with worker(url, tmp_path / "first") as first, worker(url, tmp_path / "second"):
        for i in range(50):
            record.send_with_options(args=(i,), delay=3000)
        stays_true(lambda: advisory_lock_count(url) == 0, 1)
        if ending == signal.SIGTERM:
            first.terminate()
        else:
            first.kill()
        wait_until(lambda: len(effects(url, "record")) == 50, timeout=10)
        wait_until(lambda: states(url) == {"done": 50})
    assert times(url, "record") == dict.fromkeys(range(50), 1)


def test_one_worker_of_a_group_dies_and_the_others_messages_are_safe(
    url: str, broker: PostgresBroker, tmp_path: Path
) -> None:
    """When dramatiq stops the whole group for one dead process, only that one's work is redone."""
    slow = sender(broker, "slow")
    one_each = {"dramatiq_queue_prefetch": "1"}
    with worker(url, tmp_path / "first", processes=2, threads=1, environment=one_each) as first:
        for i in range(2):
            slow.send(2, i)
        wait_until(lambda: len(effects(url, "start")) == 2)
        (victim,) = {row[3] for row in effects(url, "start") if row[1] == 0}
        os.kill(victim, signal.SIGKILL)
        first.process.wait(90)
    with worker(url, tmp_path / "second", threads=2):
        wait_until(lambda: states(url) == {"done": 2}, timeout=15)
    assert times(url, "start") == {0: 2, 1: 1}
