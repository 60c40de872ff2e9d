"""Which transaction a send belongs to: kept in the context, for threads and for tasks alike."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pipeline.outbox import Cursor


class _Block:
    """One `with broker.transaction(cursor)`."""

    def __init__(self, cursor: Cursor, outer: _Block | None) -> None:
        self.cursor = cursor
        self.outer = outer
        self.is_open = True
        self.lock = threading.RLock()


class Transactions:
    """The blocks of one broker.

    A thread or task that was started with the context of a block inherits it. Its sends join as
    long as the block is open; after that they go alone, never onto a cursor that was handed back.
    """

    def __init__(self) -> None:
        self._current: ContextVar[_Block | None] = ContextVar("transaction", default=None)

    @contextmanager
    def block(self, cursor: Cursor) -> Iterator[None]:
        """Let sends join the cursor's transaction; blocks may be nested."""
        entered = _Block(cursor, self._current.get())
        token = self._current.set(entered)
        try:
            yield
        finally:
            with entered.lock:
                entered.is_open = False
            self._current.reset(token)

    @contextmanager
    def joined(self) -> Iterator[Cursor | None]:
        """The cursor of the innermost open block, which stays open meanwhile; None without one."""
        block = self._current.get()
        while block is not None:
            with block.lock:
                if block.is_open:
                    yield block.cursor
                    return
            block = block.outer
        yield None
