"""A process's connections: a fixed number, for which threads wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dramatiq.errors import ConnectionError as DramatiqConnectionError
from dramatiq_pg.utils import check_conn
from psycopg2 import extensions
from psycopg2.pool import PoolError

#: Seconds to wait for a connection before giving up. Long: what waits is a message.
PATIENCE = 60.0


class PoolTimeoutError(DramatiqConnectionError):
    """No connection became free in time."""

    def __init__(self, message: str) -> None:
        super().__init__(message)  # type: ignore[no-untyped-call]


class BoundedPool:
    """A psycopg2 pool in which threads wait for a connection instead of being turned away.

    Parameters:
      pool: Any object with psycopg2's `getconn` and `putconn`. It may be used by others too.

    Attributes:
      size: The most connections that are lent at once: the pool's `maxconn`, 16 if it has none.
    """

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.size = int(getattr(pool, "maxconn", 16))
        self._permits = threading.BoundedSemaphore(self.size)
        self._reserving = threading.Lock()
        self._has_reserved = False

    def reserve(self) -> None:
        """Keep one connection out of the threads' reach, for `take(reserved=True)`.

        Raises:
          ValueError: When that would leave them none.
        """
        with self._reserving:
            if self._has_reserved:
                return
            if self.size < 2:
                raise ValueError(f"maxconn must be at least 2 for a worker, got {self.size}")
            self._permits.acquire()
            self._has_reserved = True

    def take(self, timeout: float = PATIENCE, *, reserved: bool = False) -> extensions.connection:
        """A working connection, which is the caller's until `give_back`.

        Parameters:
          timeout: Seconds to wait for one.
          reserved: Whether this is the reserved one.

        Raises:
          PoolTimeoutError: When none became free in `timeout` seconds.
          psycopg2.OperationalError: When the server can't be reached.
        """
        deadline = time.monotonic() + timeout
        if not reserved and not self._permits.acquire(timeout=timeout):
            raise PoolTimeoutError(
                f"all {self.size} connections of this process were in use for {timeout:g} s; "
                "raise maxconn, or run fewer threads"
            )
        try:
            while True:
                try:
                    connection: extensions.connection = self.pool.getconn()
                except PoolError:
                    # Somebody else uses the pool as well.
                    if time.monotonic() > deadline:
                        raise PoolTimeoutError(
                            f"the pool is exhausted since {timeout:g} s"
                        ) from None
                    time.sleep(0.02)
                    continue
                try:
                    check_conn(connection)
                except DramatiqConnectionError:
                    # It died while nobody used it, and the others may have too: try the next.
                    self.pool.putconn(connection, close=True)
                    continue
                return connection
        except BaseException:
            if not reserved:
                self._permits.release()
            raise

    def give_back(
        self, connection: extensions.connection, *, close: bool = False, reserved: bool = False
    ) -> None:
        """Return a connection, or end it where it must not be used again."""
        try:
            self.pool.putconn(connection, close=close or bool(connection.closed))
        finally:
            if not reserved:
                self._permits.release()

    @contextmanager
    def transaction(self, timeout: float = PATIENCE) -> Iterator[extensions.cursor]:
        """One transaction on a connection of the pool."""
        connection = self.take(timeout)
        in_doubt = True
        try:
            if connection.autocommit:
                connection.autocommit = False
            with connection.cursor() as cursor:
                yield cursor
            connection.commit()
            in_doubt = False
        except Exception:
            if not connection.closed:
                connection.rollback()
                in_doubt = False
            raise
        finally:
            # An exception that another thread raised in this one may have cut anything short.
            self.give_back(connection, close=in_doubt)
