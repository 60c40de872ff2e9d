"""Sending messages in a transaction of their own, once, whatever happens to the connection."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import psycopg2
from dramatiq.errors import ConnectionError as DramatiqConnectionError

from pipeline.broker.pool import BoundedPool
from pipeline.outbox import QueueTable, write

logger = logging.getLogger(__name__)

#: Seconds for which a send is tried again while Postgres can't be reached.
PATIENCE = 30.0

#: Seconds between two tries, at first and at most.
PAUSE_FIRST, PAUSE_MOST = 0.05, 2.0

DISCONNECTED = (psycopg2.OperationalError, psycopg2.InterfaceError)


class Sender:
    """Writes messages with connections of a pool.

    Parameters:
      pool: Where the connections come from.
      table: Where the messages go.
      announces: Whether consumers are notified.
    """

    def __init__(self, pool: BoundedPool, table: QueueTable, *, announces: bool) -> None:
        self._pool = pool
        self._table = table
        self._announces = announces

    def send(self, rows: Sequence[str]) -> None:
        """Write rows of `pipeline.outbox.encode_row` and commit them.

        Raises:
          dramatiq.errors.ConnectionError: When Postgres can't be reached for half a minute.
        """
        deadline = time.monotonic() + PATIENCE
        pause = PAUSE_FIRST
        while True:
            transaction_id: str | None = None
            try:
                with self._pool.transaction() as cursor:
                    write(cursor, self._table, rows, announce=self._announces)
                    found = cursor.fetchone()
                    transaction_id = None if found is None else found[0]
                return
            except DISCONNECTED as error:
                # The commit may have succeeded all the same: then sending again would run it twice.
                if transaction_id is not None and self._has_committed(transaction_id, deadline):
                    return
                if time.monotonic() > deadline:
                    raise DramatiqConnectionError(str(error)) from error
                logger.info("could not send, trying again: %s", str(error).strip())
            time.sleep(pause)
            pause = min(pause * 2, PAUSE_MOST)

    def _has_committed(self, transaction_id: str, deadline: float) -> bool:
        while True:
            try:
                with self._pool.transaction() as cursor:
                    cursor.execute("SELECT pg_xact_status(%s::xid8)", (transaction_id,))
                    row = cursor.fetchone()
                if row is None or row[0] != "in progress":
                    return row is not None and row[0] == "committed"
                # A commit that waits, for a standby that is away for example.
                told = f"whether transaction {transaction_id} commits is not known yet"
            except DISCONNECTED as error:
                told = str(error)
            if time.monotonic() > deadline:
                raise DramatiqConnectionError(told)
            time.sleep(PAUSE_FIRST)
