"""Results in the messages' own rows, as with dramatiq-pg, found by asking instead of by waiting."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from dramatiq.results import ResultBackend, ResultMissing, ResultTimeout
from dramatiq_pg import PostgresBackend as StockBackend
from dramatiq_pg.utils import make_pool

from pipeline.broker.pool import BoundedPool
from pipeline.broker.queries import Queries
from pipeline.outbox import cleaned

#: Milliseconds that a blocking `get_result` waits, unless it is told how long.
DEFAULT_TIMEOUT = 10_000

#: Seconds between two looks for a result, at first and at most.
POLL_FIRST, POLL_MOST = 0.01, 0.25


class PostgresBackend(StockBackend):  # type: ignore[misc]
    """dramatiq-pg's result backend, for one schema and prefix.

    A thread that waits for a result holds no connection meanwhile. An actor's exception is raised
    as `ResultFailure`, as with dramatiq's own backends. A result of any length is kept.

    Parameters:
      url, pool: The one or the other, as with dramatiq-pg.
      schema, prefix: Of the table; "dramatiq" and "" unless given.
      is_lost: Whether this process must not write the result of a message any more.
    """

    def __init__(
        self,
        *,
        url: Any = None,
        pool: Any = None,
        schema: str | None = None,
        prefix: str | None = None,
        is_lost: Callable[[str], bool] = lambda _: False,
        **options: Any,
    ) -> None:
        ResultBackend.__init__(self, **options)
        if pool is None:
            pool = make_pool(url)
        self.pool = pool.pool if isinstance(pool, BoundedPool) else pool
        self._pool = pool if isinstance(pool, BoundedPool) else BoundedPool(pool)
        self._queries = Queries(schema or "dramatiq", prefix or "")
        self._is_lost = is_lost

    def get_result(self, message: Any, *, block: bool = False, timeout: int | None = None) -> Any:
        """The result of a message.

        Parameters:
          message: The message.
          block: Whether to wait for it.
          timeout: Milliseconds to wait at most; 10 s unless given.

        Raises:
          ResultMissing: When there is none yet and it isn't waited for.
          ResultTimeout: When none came in time.
          ResultFailure: When the actor has raised an exception.
        """
        deadline = time.monotonic() + (DEFAULT_TIMEOUT if timeout is None else timeout) / 1000
        key = self.build_message_key(message)
        pause = POLL_FIRST
        while True:
            with self._pool.transaction() as cursor:
                cursor.execute(self._queries.client_text("result_get"), {"id": key})
                row = cursor.fetchone()
            if row is not None:
                return self.unwrap_result(row[0])
            if not block:
                raise ResultMissing(message)
            left = deadline - time.monotonic()
            if left <= 0:
                raise ResultTimeout(message)
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, POLL_MOST)

    def _store(self, key: str, result: Any, ttl: int) -> None:
        if self._is_lost(key):
            return
        value = json.loads(self.encoder.encode(result))
        with self._pool.transaction() as cursor:
            cursor.execute(
                self._queries.client_text("result_store"),
                {"id": key, "result": json.dumps(cleaned(value)), "ttl": ttl},
            )
