"""The broker: what actors send with, and what dramatiq's worker consumes from."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Literal

import psycopg2
from dramatiq.broker import MessageProxy
from dramatiq.common import dq_name
from dramatiq.errors import ConnectionError as DramatiqConnectionError
from dramatiq.errors import DecodeError, QueueJoinTimeout
from dramatiq.message import Message
from dramatiq.results import Results
from dramatiq_pg import PostgresBroker as StockBroker
from dramatiq_pg.utils import make_pool

from pipeline.broker.consumer import PostgresConsumer, StartGuard
from pipeline.broker.hand import Held
from pipeline.broker.keeper import Keeper, Rhythm
from pipeline.broker.pool import BoundedPool
from pipeline.broker.queries import Queries
from pipeline.broker.results import PostgresBackend
from pipeline.broker.sending import Sender
from pipeline.broker.session import Session, TakenUp
from pipeline.broker.transactions import Transactions
from pipeline.broker.upkeep import Keep, Upkeep
from pipeline.outbox import Cursor, delay_message, encode_message, encode_row, write

logger = logging.getLogger(__name__)


class WorkerLostError(Exception):
    """Why a message was rejected whose workers died each time they had it."""


class PostgresBroker(StockBroker):  # type: ignore[misc]
    """dramatiq-pg's broker with another way to consume. See the package's docstring.

    A process that consumes has at most `maxconn` connections (a parameter of the URL, 16 unless
    given): one of them claims and holds the locks of all queues, the others are lent to threads
    that send, store results or read them. A thread that finds none free waits.

    Parameters:
      pool: A psycopg2 pool, instead of a URL.
      url: Where Postgres is.
      results: Whether to keep results in the messages' rows.
      schema: Of the table; "dramatiq" unless given.
      prefix: Of the table's name; none unless given.
      wake: "notify", or "poll" to neither listen nor notify: for high rates of commits, all of
        which NOTIFY makes wait for each other, and only in a fleet without stock consumers.
      poll_interval: Seconds between two looks for messages of which no notification came.
      look_interval: Seconds between two looks for messages of dead workers.
      max_takeups: How often a message may be taken up from a dead worker until it is rejected.
      keep_done: How long acknowledged messages stay in the table.
      keep_rejected: How long failed ones do.
      keep_by_queue: How long both do in single queues.
      makes_indexes: Whether workers make the two partial indexes, concurrently, where missing.
      consume_url: Where Postgres is without a pooler in transaction mode, for the session that
        holds locks, if `url` goes through one.

    Raises:
      ValueError: For a value out of range, or both a pool and a URL.
    """

    def __init__(
        self,
        *,
        pool: Any = None,
        url: Any = "",
        results: bool = True,
        schema: str | None = None,
        prefix: str | None = None,
        wake: Literal["notify", "poll"] = "notify",
        poll_interval: float = 1.0,
        look_interval: float = 1.0,
        max_takeups: int = 5,
        keep_done: timedelta = timedelta(days=7),
        keep_rejected: timedelta = timedelta(days=30),
        keep_by_queue: Mapping[str, timedelta] | None = None,
        makes_indexes: bool = True,
        consume_url: Any = None,
        **options: Any,
    ) -> None:
        if wake not in ("notify", "poll"):
            raise ValueError(f'wake must be "notify" or "poll", got {wake!r}')
        for name, value in (("poll_interval", poll_interval), ("look_interval", look_interval)):
            if value <= 0:
                raise ValueError(f"{name} must be positive, got {value}")
        if max_takeups < 1:
            raise ValueError(f"max_takeups must be at least 1, got {max_takeups}")
        # Without schema and results the parent leaves its module's global SQL alone.
        super().__init__(pool=pool, url=url, results=False, **options)
        self._made_pool = pool is None
        self._schema = schema or "dramatiq"
        self._prefix = prefix or ""
        self._queries = Queries(self._schema, self._prefix)
        #: Where `pipeline.outbox.enqueue` writes this broker's messages, and whether it notifies.
        self.queue_table = self._queries.table
        self.announces = wake == "notify"
        self._bounded = BoundedPool(self.pool)
        self._sender = Sender(self._bounded, self.queue_table, announces=self.announces)
        self._consume_pool = None if consume_url is None else make_pool(consume_url, maxconn=1)
        self._transactions = Transactions()
        self._rhythm = Rhythm(listens=wake == "notify", poll=poll_interval, look=look_interval)
        self._max_takeups = max_takeups
        by_queue = keep_by_queue or {}
        self.upkeep = Upkeep(
            self._bounded,
            self._queries,
            self._schema,
            self._prefix,
            keep={
                "done": Keep(keep_done, by_queue),
                "rejected": Keep(keep_rejected, by_queue),
            },
            makes_indexes=makes_indexes,
        )
        #: What this process has in hand; made when it first consumes.
        self.keeper: Keeper | None = None
        self._keeper_pid = 0
        self._making = threading.Lock()
        guard = StartGuard(self)
        if self.middleware:
            self.add_middleware(guard, before=type(self.middleware[0]))
        else:
            self.add_middleware(guard)
        if results:
            self.backend = PostgresBackend(
                pool=self._bounded, schema=schema, prefix=prefix, is_lost=self._is_lost
            )
            self.add_middleware(Results(backend=self.backend))

    # Sending.

    def enqueue(self, message: Any, *, delay: float | None = None) -> Any:
        """Send a message, in the caller's transaction if there is one.

        A message that is in hand here, as middleware sends it to have it run again, is written
        together with its ack.

        Parameters:
          message: The message.
          delay: Milliseconds to wait, by the database's clock; None or 0 for none.

        Raises:
          UnstorableMessageError: (a ValueError) When Postgres could not store it.
          dramatiq.errors.ConnectionError: When Postgres can't be reached for half a minute.

        Returns:
          The message, or the delayed copy of it.
        """
        held = self._held(message.message_id)
        message.options.pop("takeup", None)
        if delay:
            message = delay_message(message, delay)
        self.emit_before("enqueue", message, delay)
        with self._transactions.joined() as cursor:
            if cursor is not None:
                row = encode_row(message, delay or None)
                write(cursor, self.queue_table, [row], announce=self.announces)
            elif held is not None and not held.is_settling:
                text = encode_message(message, clean=True)
                held.resend = (text, message.queue_name, delay or None)
            else:
                self._sender.send([encode_row(message, delay or None)])
                if self.keeper is not None and not self.announces:
                    self.keeper.nudge(message.queue_name)
        self.emit_after("enqueue", message, delay)
        return message

    def transaction(self, cursor: Cursor) -> AbstractContextManager[None]:
        """Let everything that is sent in the block be part of the cursor's transaction.

        `send`, `send_with_options`, `group.run`, `pipeline.run` and what middleware enqueues join;
        what happens to the transaction happens to the messages, savepoints included. The block
        itself neither commits nor rolls back. Blocks may be nested; each is its thread's or task's.

        Raises:
          RuntimeError: When the cursor's connection is in autocommit mode with no transaction open:
            each message would be sent at once.
        """
        _refuse_autocommit(cursor)
        return self._transactions.block(cursor)

    # Consuming.

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30000) -> PostgresConsumer:
        """An iterator over the messages of a queue.

        Parameters:
          queue_name: The queue; for a delay queue nothing is handed out: what is due is moved.
          prefetch: The most messages of the queue that this process has in hand.
          timeout: Milliseconds to wait for a message before it gives None.
        """
        with self._making:
            if self.keeper is None or self._keeper_pid != os.getpid():
                self._bounded.reserve()
                self._keeper_pid = os.getpid()
                self.keeper = Keeper(
                    self._open_session,
                    rhythm=self._rhythm,
                    takeup_limit=self._max_takeups,
                    on_rejected=self._report_rejected,
                )
        self.upkeep.start()
        inbox = self.keeper.open_inbox(
            queue_name, prefetch, is_delay_queue=queue_name == dq_name(queue_name)
        )
        return PostgresConsumer(self.keeper, inbox, timeout)

    def note_start(self, message_id: str) -> None:
        """Write into a message that was taken up before that it is started now."""
        try:
            with self._bounded.transaction() as cursor:
                cursor.execute(self._queries.client_text("started"), {"id": message_id})
        except (psycopg2.Error, DramatiqConnectionError) as error:
            logger.warning("can't note the start of %s: %s", message_id, str(error).strip())

    def _open_session(self, listen: Iterable[str]) -> Session:
        if self._consume_pool is not None:
            pool, bounded = self._consume_pool, None
            connection = pool.getconn()
        else:
            pool, bounded = self.pool, self._bounded
            connection = bounded.take(reserved=True)
        try:
            return Session(
                connection,
                self._queries,
                listen,
                lambda ended: pool.putconn(ended, close=True),
            )
        except BaseException:
            pool.putconn(connection, close=True)
            raise

    def _is_lost(self, message_id: str) -> bool:
        held = self._held(message_id)
        return held is not None and held.is_lost

    def _held(self, message_id: str) -> Held | None:
        return None if self.keeper is None else self.keeper.get(message_id)

    def _report_rejected(self, taken: TakenUp) -> None:
        """Let middleware know that a message was rejected, as if a worker had done it."""

        try:
            message = Message.decode(taken.message.encode("utf-8"))
        except (DecodeError, TypeError, ValueError):
            # No middleware could make anything of it.
            return

        def report() -> None:
            proxy = MessageProxy(message)
            proxy.fail()
            proxy.stuff_exception(
                WorkerLostError(f"its worker died {taken.takeup_count} times while it had it")
            )
            self.emit_before("nack", proxy)
            self.emit_after("nack", proxy)

        threading.Thread(target=report, name="dramatiq-pg rejected", daemon=True).start()

    # Looking after it.

    def prepare(self) -> None:
        """Make the table and the partial indexes where they are missing; blocks nobody."""
        self.upkeep.make_table()
        self.upkeep.make_indexes()

    def flush(self, queue_name: str) -> None:
        """Drop everything that waits in a queue, delayed messages too."""
        with self._bounded.transaction() as cursor:
            cursor.execute(
                self._queries.client_text("flush"),
                {"queues": [queue_name, dq_name(queue_name)]},
            )

    def flush_all(self) -> None:
        """Drop everything that waits in any declared queue."""
        for queue_name in self.get_declared_queues():
            self.flush(queue_name)

    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """Wait until nothing waits or is in hand in a queue, delayed messages included: for tests.

        Raises:
          QueueJoinTimeout: When that takes longer than `timeout` milliseconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout / 1000
        while True:
            with self._bounded.transaction() as cursor:
                cursor.execute(
                    self._queries.client_text("unfinished"),
                    {"queues": [queue_name, dq_name(queue_name)]},
                )
                row = cursor.fetchone()
            if row is not None and not row[0]:
                return
            if deadline is not None and time.monotonic() > deadline:
                raise QueueJoinTimeout(f"queue {queue_name} is not empty after {timeout} ms")
            time.sleep(0.05)

    def close(self) -> None:
        """Stop what runs in the background; end the connections if they are the broker's own."""
        self.upkeep.stop()
        if self.keeper is not None:
            self.keeper.abandon()
        if self._made_pool and not self.pool.closed:
            self.pool.closeall()


def _refuse_autocommit(cursor: Cursor) -> None:
    connection = getattr(cursor, "connection", None)
    status = getattr(getattr(connection, "info", None), "transaction_status", None)
    if getattr(connection, "autocommit", False) is True and status == 0:
        raise RuntimeError(
            "the cursor's connection is in autocommit mode and no transaction is open: "
            "each message would be sent at once, whatever happens later in the block"
        )
