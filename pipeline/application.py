"""`Pipeline`: one installation, on a broker that the caller made."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from apscheduler.schedulers.base import BaseScheduler
from dramatiq import Broker
from psycopg2.extensions import make_dsn
from psycopg2.pool import AbstractConnectionPool

from .actors import Actors
from .database import Connection, connect
from .doorbells import Doorbells
from .outbox import queue_table
from .scheduling import Schedule
from .settings import Settings
from .stacking import Pass, run_pass

logger = logging.getLogger(__name__)


class Pipeline:
    """Registers the pipeline's actors on a broker, and nothing else anywhere else.

    The broker may be a stock `dramatiq_pg.PostgresBroker` that has other actors. The global broker
    is not touched.

    Parameters:
      broker: Whose workers stack and send.
      settings: Read from the environment unless given. `database_url` must be the database in which
        the broker has its table; when it is not set, the broker is asked where that is.

    Raises:
      SettingError: When a setting can't be used, or nobody names a database.
      TypeError: When the broker doesn't keep its messages in dramatiq-pg's table.
      ValueError: When it has a pipeline's actors already.
    """

    def __init__(self, broker: Broker, settings: Settings | None = None) -> None:
        settings = Settings.load() if settings is None else settings
        self.broker = broker
        if settings.database_url is None:
            settings = replace(settings, database_url=_database_of(broker))
        self.settings = _with_queue_of(broker, settings)
        self.url = settings.url
        self.doorbells = Doorbells(broker, senders=self.settings.senders)
        self.actors = Actors(broker, self.url, self.settings, self.doorbells)

    def schedule(self, scheduler: BaseScheduler) -> Schedule:
        """Add the pipeline's jobs to an APScheduler of the caller's.

        Any number of processes may do so: ticks are made once each, and recovery may run twice.
        """
        schedule = Schedule(self.url, self.settings, self.doorbells)
        schedule.add_jobs(scheduler)
        return schedule

    def stack(self, connection: Connection | None = None, **options: Any) -> Pass:
        """Run one stacking pass now, in this thread.

        Parameters:
          connection: To the same database, in autocommit mode; a new one unless given.
          options: As for `stacking.run_pass`.
        """
        if connection is not None:
            return run_pass(connection, self.settings, self.doorbells, **options)
        connection = connect(self.url)
        try:
            return run_pass(connection, self.settings, self.doorbells, **options)
        finally:
            connection.close()


def _database_of(broker: Broker) -> str | None:
    """The address that the broker's own connections go to, if its pool is one of psycopg2's."""
    pool = getattr(broker, "pool", None)
    if not isinstance(pool, AbstractConnectionPool):
        return None
    # psycopg2 has no public way to ask a pool; these are what it passes to `connect`.
    arguments: tuple[Any, ...] = getattr(pool, "_args", ())
    options: dict[str, Any] = getattr(pool, "_kwargs", {})
    address = {
        name: value
        for name, value in options.items()
        if name != "application_name" and not name.endswith("_factory")
    }
    return str(make_dsn(*arguments[:1], **address)) or None


def _with_queue_of(broker: Broker, settings: Settings) -> Settings:
    """The settings with the broker's own schema and prefix."""
    table = queue_table(broker)
    prefix = table.name.removesuffix("queue")
    if (settings.queue_schema, settings.queue_prefix) == (table.schema, prefix):
        return settings
    logger.warning(
        "The broker keeps its messages in %s, which is used here. Commands, and a scheduler of its "
        "own, would look elsewhere: set PIPELINE_QUEUE_SCHEMA=%s and PIPELINE_QUEUE_PREFIX=%s.",
        table,
        table.schema,
        prefix,
    )
    return replace(settings, queue_schema=table.schema, queue_prefix=prefix)
