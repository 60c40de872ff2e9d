"""What our own processes have in common: the settings they run under and the broker they use."""

from __future__ import annotations

import ctypes
import signal
import sys
from dataclasses import replace

from dramatiq import Broker, Middleware
from dramatiq.middleware import (
    AgeLimit,
    Callbacks,
    Pipelines,
    Retries,
    ShutdownNotifications,
    TimeLimit,
)
from dramatiq_pg import PostgresBroker
from psycopg2.pool import ThreadedConnectionPool

from .database import CONNECTION_DEFAULTS
from .settings import Settings

#: Connections that a worker process may have to the queue: its consumers' and one a thread.
POOL_SIZE = 64

#: prctl(2): the signal that a process gets when its parent dies.
PR_SET_PDEATHSIG = 1


class EndsWithParent(Middleware):
    """A worker process ends when the process that started it is killed: nobody would stop it."""

    def after_process_boot(self, broker: Broker) -> None:
        end_with_parent()


def end_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies; elsewhere nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def resolved(settings: Settings | None = None) -> Settings:
    """The settings, with the embedded Postgres in place of a database that is not named."""
    settings = Settings.load() if settings is None else settings
    if settings.database_url is not None:
        return settings
    from .embedded import embedded_url

    return replace(settings, database_url=embedded_url())


def make_broker(settings: Settings) -> PostgresBroker:
    """A dramatiq-pg broker for our own processes.

    Without results, which nobody asks for, and without the Prometheus middleware, which at import
    makes folders and opens a port.
    """
    pool = ThreadedConnectionPool(
        0,
        POOL_SIZE,
        settings.url,
        application_name="pipeline queue",
        **CONNECTION_DEFAULTS,
    )
    pool.minconn = 4
    return PostgresBroker(
        pool=pool,
        results=False,
        schema=settings.queue_schema,
        prefix=settings.queue_prefix,
        middleware=[
            EndsWithParent(),
            AgeLimit(),
            TimeLimit(),
            ShutdownNotifications(),
            Callbacks(),
            Pipelines(),
            Retries(),
        ],
    )
