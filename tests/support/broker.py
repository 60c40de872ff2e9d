"""Brokers and workers within the test's own process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dramatiq
import psycopg2
from dramatiq.middleware import (
    AgeLimit,
    Callbacks,
    CurrentMessage,
    Pipelines,
    Retries,
    ShutdownNotifications,
    TimeLimit,
)
from dramatiq_pg import PostgresBroker as StockBroker

from pipeline.broker import PostgresBroker
from tests.support.postgres import execute


def middleware() -> list[dramatiq.Middleware]:
    """Dramatiq's default middleware, without the one that opens a port."""
    return [
        AgeLimit(),
        TimeLimit(interval=50),
        ShutdownNotifications(),
        Callbacks(),
        Pipelines(),
        Retries(min_backoff=1, max_backoff=20),
        CurrentMessage(),
    ]


@contextmanager
def mended_broker(url: str, *, maxconn: int = 16, **options: Any) -> Iterator[PostgresBroker]:
    """A mended broker, closed at the end."""
    dsn = {**psycopg2.extensions.parse_dsn(url), "maxconn": maxconn}
    broker = PostgresBroker(url=dsn, **{"middleware": middleware(), **options})
    try:
        yield broker
    finally:
        broker.close()


@contextmanager
def stock_broker(url: str, **options: Any) -> Iterator[StockBroker]:
    """dramatiq-pg's broker, closed at the end."""
    dsn = {**psycopg2.extensions.parse_dsn(url), "minconn": 0}
    broker = StockBroker(url=dsn, **{"middleware": middleware(), **options})
    try:
        yield broker
    finally:
        broker.pool.closeall()


@contextmanager
def running_worker(
    broker: dramatiq.Broker, *, threads: int = 4, **options: Any
) -> Iterator[dramatiq.Worker]:
    """A dramatiq worker in this process, stopped at the end."""
    worker = dramatiq.Worker(broker, worker_threads=threads, worker_timeout=100, **options)
    broker.emit_after("process_boot")
    worker.start()
    try:
        yield worker
    finally:
        worker.stop(timeout=20_000)


def actor(
    broker: dramatiq.Broker, fn: Callable[..., Any], **options: Any
) -> dramatiq.Actor[..., Any]:
    """Register a function as an actor."""
    return dramatiq.actor(fn, broker=broker, **{"actor_name": fn.__name__, **options})


def messages(url: str, table: str = "dramatiq.queue") -> dict[str, Any]:
    """What is in the table: id to (queue, state, message)."""
    rows = execute(url, f"SELECT message_id::text, queue_name, state::text, message FROM {table}")
    return {row[0]: tuple(row[1:]) for row in rows}


def advisory_lock_count(url: str) -> int:
    """How many advisory locks are held in this database."""
    ((count,),) = execute(
        url,
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
    )
    return int(count)
