"""A small shop on dramatiq-pg, for worker processes that tests start and kill.

`dramatiq tests.support.broker_shop` runs its actors. The environment says which broker: SHOP_URL,
SHOP_BROKER (`stock` or `mended`), SHOP_OPTIONS (its further options, as JSON). Each actor writes to
the table `effect` what it did, so that a test can count executions.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import threading
import time
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
from dramatiq_pg import PostgresBroker

EFFECT_TABLE = """
    CREATE TABLE IF NOT EXISTS effect (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        name text NOT NULL,
        value jsonb,
        message_id uuid,
        pid integer NOT NULL,
        at timestamptz NOT NULL DEFAULT clock_timestamp()
    )
"""

URL = os.environ.get("SHOP_URL", "")
_local = threading.local()


def make_broker() -> Any:
    """The broker that the environment asks for, with the middleware that does no I/O of its own."""
    middleware = [
        AgeLimit(),
        TimeLimit(interval=100),
        ShutdownNotifications(),
        Callbacks(),
        Pipelines(),
        Retries(min_backoff=100, max_backoff=1000),
        CurrentMessage(),
    ]
    options: dict[str, Any] = {
        "url": psycopg2.extensions.parse_dsn(URL),
        "middleware": middleware,
        **json.loads(os.environ.get("SHOP_OPTIONS", "{}")),
    }
    if os.environ.get("SHOP_BROKER", "stock") == "stock":
        return PostgresBroker(**options)
    return importlib.import_module("pipeline.broker").PostgresBroker(**options)


def effect(name: str, value: object = None) -> None:
    """Commit one row that says that this happened now, here, in this message."""
    if not hasattr(_local, "connection") or _local.connection.closed:
        _local.connection = psycopg2.connect(URL)
        _local.connection.autocommit = True
    message = CurrentMessage.get_current_message()
    try:
        with _local.connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO effect (name, value, message_id, pid) VALUES (%s, %s, %s, %s)",
                (name, json.dumps(value), message and message.message_id, os.getpid()),
            )
    except psycopg2.OperationalError:
        _local.connection.close()
        effect(name, value)


broker = make_broker()
dramatiq.set_broker(broker)


@dramatiq.actor
def record(value: object = None) -> None:
    """Say that it ran."""
    effect("record", value)


@dramatiq.actor
def slow(seconds: float, value: object = None) -> None:
    """Say when it starts and when it ends."""
    effect("start", value)
    time.sleep(seconds)
    effect("end", value)


@dramatiq.actor
def kill() -> None:
    """Take the whole process down, as the kernel does when memory runs out."""
    effect("kill")
    os.kill(os.getpid(), signal.SIGKILL)
