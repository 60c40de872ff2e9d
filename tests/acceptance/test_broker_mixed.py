"""Stock and mended workers on one table, as during a rolling change: tested both ways."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from dramatiq_pg import PostgresBroker as StockBroker
from dramatiq_pg import generate_init_sql

from pipeline.broker import PostgresBroker
from tests.support.broker import advisory_lock_count, mended_broker, stock_broker
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
def mended(url: str) -> Iterator[PostgresBroker]:
    """A mended broker to send with."""
    with mended_broker(url) as made:
        yield made


@pytest.fixture
def stock(url: str) -> Iterator[StockBroker]:
    """A stock broker to send with."""
    with stock_broker(url) as made:
        yield made


def test_both_kinds_share_the_work_and_each_message_runs_once(
    url: str, mended: PostgresBroker, stock: StockBroker, tmp_path: Path
) -> None:
    """A thousand messages from both kinds of senders, two workers of each kind: once each."""
    senders = [sender(mended, "record"), sender(stock, "record")]
    with (
        worker(url, tmp_path / "stock", kind="stock", threads=4),
        worker(url, tmp_path / "mended", kind="mended", threads=4),
    ):
        for i in range(1000):
            senders[i % 2].send(i)
        wait_until(
            lambda: states(url) == {"done": 1000}, timeout=60, message=lambda: str(states(url))
        )
        assert len({row[3] for row in effects(url)}) == 2, "both had a share"
    assert times(url, "record") == dict.fromkeys(range(1000), 1)


@pytest.mark.parametrize(
    ("holder", "newcomer"), [("stock", "mended"), ("mended", "stock")], ids=str
)
def test_a_running_message_is_not_taken_by_the_other_kind(
    url: str, stock: StockBroker, tmp_path: Path, holder: str, newcomer: str
) -> None:
    """A worker that starts beside it finds the row `consumed` and locked, and lets it be."""
    sender(stock, "slow").send(5, "long")
    with worker(url, tmp_path / "holder", kind=holder):
        wait_until(lambda: len(effects(url, "start")) == 1)
        with worker(url, tmp_path / "newcomer", kind=newcomer):
            wait_until(lambda: len(effects(url, "end")) == 1)
            wait_until(lambda: states(url) == {"done": 1})
            stays_true(lambda: [row[0] for row in effects(url)] == ["start", "end"], 1)


def test_a_mended_worker_takes_up_what_a_killed_stock_one_had(
    url: str, stock: StockBroker, tmp_path: Path
) -> None:
    """Within seconds, though nothing announces it."""
    slow = sender(stock, "slow")
    with worker(url, tmp_path / "mended", kind="mended", arguments=("--queues", "none")):
        pass
    with worker(url, tmp_path / "stock", kind="stock"):
        slow.send(60, 1)
        wait_until(lambda: len(effects(url, "start")) == 1)
    with worker(url, tmp_path / "mended", kind="mended"):
        wait_until(lambda: len(effects(url, "start")) == 2, timeout=5)


def test_a_stock_worker_takes_up_what_a_killed_mended_one_had(
    url: str, stock: StockBroker, tmp_path: Path
) -> None:
    """When it starts, as it does with its own kind; a share of delayed ones included."""
    slow, record = sender(stock, "slow"), sender(stock, "record")
    with worker(url, tmp_path / "mended", kind="mended", threads=1):
        slow.send(60, 1)
        wait_until(lambda: len(effects(url, "start")) == 1)
        for i in range(5):
            record.send(i)
        record.send_with_options(args=("later",), delay=2000)
        wait_until(lambda: states(url).get("consumed", 0) >= 2)
    wait_until(lambda: advisory_lock_count(url) == 0)
    with worker(url, tmp_path / "stock", kind="stock", threads=4):
        wait_until(lambda: len(effects(url, "start")) == 2, timeout=10)
        wait_until(lambda: len(effects(url, "record")) == 6, timeout=15)
    assert set(times(url, "record").values()) == {1}


@pytest.mark.parametrize("kind", ["stock", "mended"])
def test_delays_of_either_sender_run_with_either_worker(
    url: str, mended: PostgresBroker, stock: StockBroker, tmp_path: Path, kind: str
) -> None:
    """The row of a delayed message is the same from both, and both understand it."""
    with worker(url, tmp_path / "log", kind=kind):
        for name, broker in (("mended", mended), ("stock", stock)):
            sender(broker, "record").send_with_options(args=(name,), delay=500)
        wait_until(lambda: len(effects(url)) == 2, timeout=10)
        wait_until(lambda: states(url) == {"done": 2}, timeout=10)
    assert times(url, "record") == {"mended": 1, "stock": 1}


def test_a_rolling_change_and_back_loses_nothing(
    url: str, stock: StockBroker, tmp_path: Path
) -> None:
    """Stock, both, mended, both, stock: under steady load every message runs exactly once."""
    record = sender(stock, "record")
    sent = 0

    def load(count: int) -> None:
        nonlocal sent
        for _ in range(count):
            record.send(sent)
            sent += 1

    load(50)
    with worker(url, tmp_path / "1", kind="stock") as first:
        load(100)
        with worker(url, tmp_path / "2", kind="mended") as second:
            load(100)
            first.terminate()
            load(100)
            with worker(url, tmp_path / "3", kind="stock"):
                load(100)
                second.terminate()
                load(100)
                wait_until(
                    lambda: states(url) == {"done": sent},
                    timeout=60,
                    message=lambda: str(states(url)),
                )
    assert times(url, "record") == dict.fromkeys(range(sent), 1)
