"""What our own processes have in common: the settings they run under and the broker they use."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from contextlib import closing
from dataclasses import replace

from dramatiq import Broker, Middleware, Worker
from dramatiq.middleware import (
    AgeLimit,
    Callbacks,
    Pipelines,
    Retries,
    ShutdownNotifications,
    TimeLimit,
)
from dramatiq.worker import QUEUE_PREFETCH
from dramatiq_pg import PostgresBroker
from psycopg2.pool import ThreadedConnectionPool

from .database import CONNECTION_DEFAULTS, connect, init
from .settings import Settings
from .storms import tell_of_storms

#: Connections that a worker process may have to the queue: its consumers' and one a thread.
POOL_SIZE = 64

#: prctl(2): the signal that a process gets when its parent dies.
PR_SET_PDEATHSIG = 1


class EndsWithParent(Middleware):
    """A worker process ends when the process that started it is killed: nobody would stop it."""

    def after_process_boot(self, broker: Broker) -> None:
        end_with_parent()


class FetchesWhatItRuns(Middleware):
    """A worker process fetches no more messages than it has threads, where Dramatiq fetches twice
    as many: a doorbell in the memory of a busy process calls nobody, and another one may be idle.

    But two at the least: dramatiq-pg's consumer sleeps for up to a second when it has all it may
    have, and the doorbell that a single thread's pass rings is for that thread.
    """

    def before_worker_boot(self, broker: Broker, worker: Worker) -> None:
        if not QUEUE_PREFETCH:
            worker.queue_prefetch = max(worker.worker_threads, 2)


class TellsOfStorms(Middleware):
    """What was left out of the log is told before Dramatiq closes it."""

    def after_worker_shutdown(self, broker: Broker, worker: Worker) -> None:
        tell_of_storms()


def end_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies; elsewhere nothing.

    A parent that died while this one was being made is found by its number.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        parent = multiprocessing.parent_process()
        if parent is not None and parent.pid != os.getppid():
            os.kill(os.getpid(), signal.SIGKILL)


def resolved(settings: Settings) -> Settings:
    """The settings, with the embedded Postgres in place of a database that is not named.

    Raises:
      EmbeddedPostgresError: When it can't be had.
    """
    if settings.database_url is not None:
        return settings
    from .embedded import embedded_url

    return replace(settings, database_url=embedded_url())


def prepared(settings: Settings) -> Settings:
    """The same for a worker or a scheduler: the embedded Postgres gets its schema on the way, since
    nobody else is there to do it. A database that is named is left to `pipeline init`.

    Raises:
      EmbeddedPostgresError: When it can't be had.
      psycopg2.Error: When it can't be prepared.
    """
    found = resolved(settings)
    if settings.database_url is None:
        with closing(connect(found.url)) as connection:
            init(connection, queue_schema=found.queue_schema, queue_prefix=found.queue_prefix)
    return found


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
            FetchesWhatItRuns(),
            TellsOfStorms(),
            AgeLimit(),
            TimeLimit(),
            ShutdownNotifications(),
            Callbacks(),
            Pipelines(),
            Retries(),
        ],
    )
