"""The scheduler's jobs: ticks, recovery and purging, triggered by APScheduler.

APScheduler only wakes them up. Which tick it is and what is due is decided by the database's clock,
so a late or doubled run does no harm, and any number of schedulers make one tick.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import psycopg2
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.schedulers.base import BaseScheduler
from apscheduler.triggers.interval import IntervalTrigger

from .database import Connection, connect, query, transaction
from .doorbells import Doorbells
from .recovery import Recovery
from .replies import storable
from .settings import Settings

logger = logging.getLogger(__name__)

#: The clock is looked at this often at least, however long the interval between ticks is.
LOOK_EVERY = timedelta(seconds=1)

#: What our executor and our job store are called.
ALIAS = "pipeline"

#: A job that runs less often than this connects anew each time.
RECONNECT_AFTER = timedelta(minutes=1)

#: Finished work is purged this often.
PURGE_EVERY = timedelta(minutes=10)

#: While a job keeps failing, it is said again this often, in seconds.
REMIND_EVERY = 60.0


class Schedule:
    """The jobs of one scheduler process.

    Parameters:
      url: The database; a job opens a connection when it has none, and replaces one that broke.
    """

    def __init__(self, url: str, settings: Settings, doorbells: Doorbells) -> None:
        self.url = url
        self.settings = settings
        self.doorbells = doorbells
        self._connections: dict[str, Connection] = {}
        #: Jobs run in threads of their own, also while `close` is asked.
        self._lock = threading.Lock()
        self._is_closed = False
        self._intervals: dict[str, timedelta] = {}

    def add_jobs(self, scheduler: BaseScheduler) -> None:
        """Add the jobs. A run that is late is run all the same, once.

        They have threads and a store of their own: the scheduler's may be busy with other jobs, run
        them in other processes, or keep them in a database, which these can't be written to.
        """
        with suppress(ValueError):  # they are there already
            scheduler.add_executor(ThreadPoolExecutor(max_workers=3), ALIAS)
        with suppress(ValueError):
            scheduler.add_jobstore(MemoryJobStore(), ALIAS)
        for name, job, interval in (
            ("tick", self.tick, min(self.settings.stack_every, LOOK_EVERY)),
            ("recover", self.recover, self.settings.recover_every),
            ("purge", self.purge, min(PURGE_EVERY, self.settings.keep)),
        ):
            self._intervals[name] = interval
            scheduler.add_job(
                self._guarded(name, job, keeps_connection=interval <= RECONNECT_AFTER),
                IntervalTrigger(seconds=interval.total_seconds(), timezone="UTC"),
                next_run_time=datetime.now(UTC),
                id=f"pipeline.{name}",
                executor=ALIAS,
                jobstore=ALIAS,
                coalesce=True,
                max_instances=1,
                misfire_grace_time=None,
                replace_existing=True,
            )

    def catch_up(self, scheduler: BaseScheduler) -> None:
        """Run at once what is planned for later than its interval from now.

        APScheduler goes by this machine's clock: when that is set back by an hour, nothing would
        run for an hour.
        """
        now = datetime.now(UTC)
        for name, interval in self._intervals.items():
            job = scheduler.get_job(f"pipeline.{name}", ALIAS)
            planned = job and job.next_run_time
            if planned and planned - now > 2 * interval:
                logger.warning("The clock was set back: %s is run now.", name)
                job.modify(next_run_time=now)

    def tick(self, connection: Connection) -> None:
        """Make the tick of the present slot, if nobody has, and ring for its pass."""
        with transaction(connection) as cursor:
            cursor.execute(query("tick"), {"schedule": "stack", "every": self.settings.stack_every})
            if cursor.fetchone() is not None:
                self.doorbells.ring_stacker(cursor)

    def recover(self, connection: Connection) -> None:
        """One round of recovery."""
        Recovery(connection, self.settings, self.doorbells).run()

    def purge(self, connection: Connection) -> None:
        """One round of purging."""
        Recovery(connection, self.settings, self.doorbells).purge()

    def close(self) -> None:
        """Close the connections; a job that is triggered afterwards does nothing."""
        with self._lock:
            self._is_closed = True
            connections = list(self._connections.values())
        for connection in connections:
            connection.close()

    def _forget(self, name: str) -> None:
        with self._lock:
            connection = self._connections.pop(name, None)
        if connection is not None:
            connection.close()

    def _connection(self, name: str) -> Connection | None:
        """The job's connection, which it may have kept; none once all are closed."""
        kept = self._connections.get(name)
        if kept is not None and not kept.closed:
            return kept
        with self._lock:
            if self._is_closed:
                return None
        connection = connect(self.url, application_name=f"pipeline {name}")
        with self._lock:
            if not self._is_closed:
                self._connections[name] = connection
                return connection
        connection.close()
        return None

    def _guarded(
        self, name: str, job: Callable[[Connection], None], *, keeps_connection: bool = True
    ) -> Callable[[], None]:
        """The job with a connection of its own, which survives whatever goes wrong.

        A connection that is kept from one run to the next is found broken, after an outage, by the
        run that uses it next: that must not be a run that comes seldom.

        An outage is told when it begins, every `REMIND_EVERY` and when it is over: not each second.
        """
        began = told = 0.0

        def run() -> None:
            nonlocal began, told
            try:
                connection = self._connection(name)
                if connection is not None:
                    job(connection)
            except psycopg2.Error as error:
                if self._is_closed:
                    return
                now = time.monotonic()
                began = began or now
                if not told or now - told >= REMIND_EVERY:
                    told = now
                    reason = storable(str(error))
                    logger.warning("%s failed and is tried again until it works: %s", name, reason)
            else:
                if began:
                    logger.info("%s works again, after %.0f s.", name, time.monotonic() - began)
                began = told = 0.0
            finally:
                if not keeps_connection:
                    self._forget(name)

        return run
