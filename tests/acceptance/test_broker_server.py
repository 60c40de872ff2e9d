"""Postgres goes away under load and comes back: mended workers, real processes."""

from __future__ import annotations

import os
import signal
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from dramatiq_pg import generate_init_sql

from pipeline.embedded import EmbeddedPostgres
from tests.support.broker import actor, advisory_lock_count, mended_broker
from tests.support.broker_shop import EFFECT_TABLE
from tests.support.broker_workers import effects, states, worker
from tests.support.postgres import execute
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

#: What a worker writes when the server is gone.
LOST = "lost the consumers' session"


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    """A Postgres of the test's own, which keeps what it has committed."""
    folder = Path(tempfile.gettempdir(), f"pipeline-broker-{uuid.uuid4().hex[:8]}")
    with EmbeddedPostgres(folder, temporary=True) as started:
        started.create_database("shop")
        yield started


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGQUIT], ids=["fast", "immediate"])
def test_a_restart_of_postgres_loses_nothing(
    server: EmbeddedPostgres, tmp_path: Path, ending: signal.Signals
) -> None:
    """Sent, running and finished messages survive; second runs are those of the interruption."""
    url = server.dsn("shop")
    execute(url, generate_init_sql() + EFFECT_TABLE)
    total = 0
    with mended_broker(url) as broker:
        record = actor(broker, lambda *_: None, actor_name="record")
        slow = actor(broker, lambda *_: None, actor_name="slow")
        with worker(url, tmp_path / "a", threads=4) as one, worker(url, tmp_path / "b", threads=4):
            slow.send(4, "long")
            for round_number in range(2):
                for _ in range(300):
                    record.send(total)
                    total += 1
                pid = server.pid
                assert pid is not None
                lost = one.text().count(LOST)
                os.kill(pid, ending)
                wait_until(lambda: server.pid is None, timeout=20, message="it has stopped")
                if round_number:
                    # Long enough for a worker to find out.
                    wait_until(lambda: one.text().count(LOST) > lost, timeout=20)  # noqa: B023
                server.start()
            record.send("after")
            wait_until(
                lambda: states(url) == {"done": total + 2},
                timeout=40,
                message=lambda: str(states(url)),
            )
            wait_until(lambda: advisory_lock_count(url) == 0)
    times = Counter(row[1] for row in effects(url, "record"))
    assert set(times) == {*range(total), "after"}
    # What was in hand when the server went, and no more: 4 restarts' worth of prefetched messages.
    assert sum(times.values()) - len(times) <= 4 * 8
    assert len(effects(url, "end")) <= 2


def test_a_worker_can_be_stopped_while_postgres_is_away(
    server: EmbeddedPostgres, tmp_path: Path
) -> None:
    """It gives up after a bounded wait, and what it could not settle runs again elsewhere."""
    url = server.dsn("shop")
    execute(url, generate_init_sql() + EFFECT_TABLE)
    with mended_broker(url) as broker:
        slow = actor(broker, lambda *_: None, actor_name="slow")
        for i in range(6):
            slow.send(0.5, i)
    with worker(url, tmp_path / "a", threads=2) as first:
        wait_until(lambda: len(effects(url, "start")) >= 2)
        pid = server.pid
        assert pid is not None
        os.kill(pid, signal.SIGQUIT)
        wait_until(lambda: server.pid is None, timeout=20)
        assert first.terminate(timeout=40) == 0
    server.start()
    with worker(url, tmp_path / "b", threads=2):
        wait_until(lambda: states(url) == {"done": 6}, timeout=20, message=lambda: str(states(url)))
    assert {row[1] for row in effects(url, "end")} == set(range(6))
