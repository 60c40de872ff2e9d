"""What a table needs besides: indexes for the claims, and finished messages deleted in time."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Mapping
from datetime import timedelta

import psycopg2
from dramatiq.errors import ConnectionError as DramatiqConnectionError
from dramatiq_pg import generate_init_sql
from dramatiq_pg.utils import quote_ident
from psycopg2 import extensions

from pipeline.broker.pool import BoundedPool
from pipeline.broker.queries import Queries

logger = logging.getLogger(__name__)

#: Partial indexes by the name that follows the prefix, and the SQL files that make them.
INDEXES = {"queue_claim": "index_claim", "queue_delayed": "index_delayed"}

#: Seconds between two purges, and between the batches of one.
PURGE_EVERY, BATCH_PAUSE = 60.0, 0.05


class Keep(dict[str, timedelta]):
    """How long finished messages are kept, by queue; what isn't named is kept for `default`."""

    def __init__(self, default: timedelta, by_queue: Mapping[str, timedelta]) -> None:
        super().__init__(by_queue)
        self.default = default
        for age in (default, *by_queue.values()):
            if age < timedelta(0):
                raise ValueError(f"messages can't be kept for a negative time, got {age}")


class Upkeep:
    """A thread that looks after the table as long as this process consumes.

    Parameters:
      pool: Where to borrow a connection for each step.
      queries: The SQL for the broker's table.
      schema, prefix: Of the table.
      keep: How long to keep messages in each final state.
      makes_indexes: Whether to make missing indexes.
    """

    def __init__(
        self,
        pool: BoundedPool,
        queries: Queries,
        schema: str,
        prefix: str,
        *,
        keep: Mapping[str, Keep],
        makes_indexes: bool,
    ) -> None:
        self._pool = pool
        self._queries = queries
        self._schema = schema
        self._prefix = prefix
        self._keep = keep
        self._makes_indexes = makes_indexes
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def start(self) -> None:
        """Start the thread, unless it runs."""
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                self._stop.clear()
                self._thread = threading.Thread(
                    target=self._loop, name="dramatiq-pg upkeep", daemon=True
                )
                self._thread.start()

    def stop(self) -> None:
        """Stop the thread, after the step it is at."""
        self._stop.set()

    def make_table(self) -> None:
        """Make dramatiq-pg's schema, type and table where they are missing."""
        with self._pool.transaction() as cursor:
            cursor.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (str(self._queries.table),)
            )
            cursor.execute("SELECT to_regclass(%s) IS NULL", (str(self._queries.table),))
            row = cursor.fetchone()
            if row is not None and row[0]:
                cursor.execute(generate_init_sql(self._schema, self._prefix))

    def make_indexes(self) -> list[str]:
        """Make the missing indexes without blocking anybody, and give their names.

        One process at a time; the others go on without. An index that a broken attempt has left
        invalid is made anew.
        """
        connection = self._pool.take()
        connection.autocommit = True
        lock_name = (str(self._queries.table),)
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_try_advisory_lock(hashtextextended(%s, 1))", lock_name)
                row = cursor.fetchone()
                if row is None or not row[0]:
                    return []
                made = [
                    name
                    for suffix, file in INDEXES.items()
                    if self._make_index(cursor, name := f"{self._prefix}{suffix}", file)
                ]
                cursor.execute("SELECT pg_advisory_unlock(hashtextextended(%s, 1))", lock_name)
                return made
        finally:
            # It may still hold the lock, so it goes to nobody else.
            self._pool.give_back(connection, close=True)

    def _make_index(self, cursor: extensions.cursor, name: str, file: str) -> bool:
        qualified = f"{quote_ident(self._schema)}.{quote_ident(name)}"
        cursor.execute(
            "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)", (qualified,)
        )
        found = cursor.fetchone()
        if found is not None and found[0]:
            return False
        if found is not None:
            cursor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {qualified}")
        cursor.execute(self._queries.text(file, index=quote_ident(name)))
        return True

    def purge(self) -> int:
        """Delete what has been finished for long enough, batch by batch; gives how many."""
        total = 0
        for state, keep in self._keep.items():
            rules: list[tuple[list[str] | None, list[str], timedelta]] = [
                (None, list(keep), keep.default)
            ]
            rules += [([queue_name], [], age) for queue_name, age in keep.items()]
            for only, others, age in rules:
                since = "-infinity"
                while not self._stop.is_set():
                    with self._pool.transaction() as cursor:
                        cursor.execute(
                            self._queries.client_text("purge"),
                            {
                                "state": state,
                                "age": age,
                                "only": only,
                                "except": others,
                                "since": since,
                            },
                        )
                        row = cursor.fetchone()
                    count, since = row if row is not None else (0, None)
                    total += count
                    if count < 500 or since is None:
                        break
                    self._stop.wait(BATCH_PAUSE)
        return total

    def _loop(self) -> None:
        has_indexes = not self._makes_indexes
        while True:
            try:
                if not has_indexes:
                    for name in self.make_indexes():
                        logger.info("made the index %s on %s", name, self._queries.table)
                    has_indexes = True
                deleted = self.purge()
                if deleted:
                    logger.info("deleted %d finished messages", deleted)
            except psycopg2.errors.InsufficientPrivilege as error:
                has_indexes = True
                logger.warning("leaving %s as it is: %s", self._queries.table, str(error).strip())
            except (psycopg2.Error, DramatiqConnectionError) as error:
                logger.warning("upkeep of %s: %s", self._queries.table, str(error).strip())
            if self._stop.wait(PURGE_EVERY * random.uniform(0.75, 1.25)):
                return
