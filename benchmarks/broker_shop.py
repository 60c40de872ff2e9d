"""The shop of the broker's benchmark: actors that count their runs without touching Postgres.

`dramatiq benchmarks.broker_shop` runs it. BENCH_URL, BENCH_BROKER (`stock` or `mended`) and
BENCH_OPTIONS say which broker; BENCH_TALLY is a folder in which each process keeps one file: a byte
for each message's number, counting how often it was run there, and the times of the first run and
the last.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
import time
from pathlib import Path
from typing import Any

import dramatiq
import psycopg2
from dramatiq.middleware import (
    AgeLimit,
    Callbacks,
    Pipelines,
    Retries,
    ShutdownNotifications,
    TimeLimit,
)

#: Messages are numbered from 0 to this.
NUMBERS = 500_000

#: What follows the counts: when the first run was and when the last, by the monotonic clock.
TIMES = struct.Struct("<dd")


def make_broker(kind: str, url: str, **options: Any) -> Any:
    """A broker of either kind, with dramatiq's middleware but for the one that opens a port."""
    options = {
        "url": psycopg2.extensions.parse_dsn(url),
        "middleware": [
            AgeLimit(),
            TimeLimit(),
            ShutdownNotifications(),
            Callbacks(),
            Pipelines(),
            Retries(min_backoff=100, max_backoff=1000),
        ],
        **options,
    }
    if kind == "stock":
        from dramatiq_pg import PostgresBroker as StockBroker

        return StockBroker(**options)
    from pipeline.broker import PostgresBroker

    return PostgresBroker(**options)


def tally() -> mmap.mmap:
    """This process's file of counts."""
    path = Path(os.environ["BENCH_TALLY"], str(os.getpid()))
    path.write_bytes(bytes(NUMBERS + TIMES.size))
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), NUMBERS + TIMES.size)


broker = make_broker(
    os.environ.get("BENCH_BROKER", "mended"),
    os.environ.get("BENCH_URL", ""),
    **json.loads(os.environ.get("BENCH_OPTIONS", "{}")),
)
dramatiq.set_broker(broker)
counts = tally() if "BENCH_TALLY" in os.environ else None
first_at = 0.0


def ran(number: int) -> int:
    """Count a run of this message, and say how many there were before in this process."""
    global first_at
    assert counts is not None
    now = time.monotonic()
    first_at = first_at or now
    TIMES.pack_into(counts, NUMBERS, first_at, now)
    before = counts[number]
    counts[number] = min(before + 1, 255)
    return before


@dramatiq.actor
def noop(number: int) -> None:
    """Nothing but being counted."""
    ran(number)


@dramatiq.actor
def sleeper(number: int, seconds: float) -> None:
    """Be counted, and take a while."""
    ran(number)
    time.sleep(seconds)


@dramatiq.actor
def again_at_once(number: int) -> None:
    """Ask once for another run without a delay."""
    if ran(number) == 0:
        raise dramatiq.errors.Retry("again", delay=0)


@dramatiq.actor(max_retries=1)
def poison(number: int) -> None:
    """Fail with a text that Postgres can't store."""
    ran(number)
    raise RuntimeError("550 \x00")


@dramatiq.actor
def kill(number: int) -> None:
    """Take the process down."""
    ran(number)
    os.kill(os.getpid(), signal.SIGKILL)
