"""Reads beside a turn where that takes long.

A turn reads what its mails are made of by itself, as long as that is a moment. But what is read may
be a shop's view, and while one takes its time all lanes would wait, with what servers reply
meanwhile uncertain for as long.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue

import psycopg2

from .database import Connection, boot_clock, connect
from .reading import Closing, Stack, Subject, few, read_at_once

logger = logging.getLogger(__name__)

#: Reading that took so many seconds was long.
SLOW = 0.1

#: After that it is done beside for so many seconds.
WARY = 60.0


class Pace:
    """Whether reading has taken long of late."""

    def __init__(self) -> None:
        self._slow_until = 0.0

    @property
    def is_slow(self) -> bool:
        return boot_clock() < self._slow_until

    def took(self, seconds: float) -> None:
        """Reading took so long."""
        if seconds >= SLOW:
            self._slow_until = boot_clock() + WARY


@dataclass(frozen=True, slots=True)
class WasRead:
    """What was read, or what came of it, in the place of `reading.Ahead`.

    Parameters:
      connection: The turn's.
    """

    connection: Connection
    found: Stack | Closing | Exception

    def stack(self, wanted: Subject) -> Stack | Closing:
        """What was read.

        Raises:
          Exception: What reading it raised.
        """
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


class Reader:
    """A thread that reads over a connection of its own, from the first question on.

    Parameters:
      url: The database.
      pace: Is told how long it took.
      wake: Called when something was read.
    """

    def __init__(self, url: str, pace: Pace, wake: Callable[[], None]) -> None:
        self.url = url
        self.pace = pace
        self._wake = wake
        self._asked: SimpleQueue[Subject | None] = SimpleQueue()
        #: None: it has to be read by who asked for it.
        self._found: dict[str, Stack | Closing | Exception | None] = {}
        #: The thread has ended before its time.
        self._is_broken = False
        self._connection: Connection | None = None
        self._is_stopped = False
        #: Held while the listener is woken: it is closed after `stop`.
        self._waking = threading.Lock()
        self._thread: threading.Thread | None = None

    def ask(self, wanted: Subject) -> None:
        """Have it read."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="pipeline-reader", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:
                # No more threads to be had.
                self._is_broken = True
        self._asked.put(wanted)

    def has(self, id_: str) -> bool:
        """Whether it is known what comes of reading it."""
        return id_ in self._found or self._is_broken

    def take(self, id_: str, connection: Connection) -> WasRead | None:
        """What came of it, if it was read here; it is kept no longer."""
        found = self._found.pop(id_, None)
        return None if found is None else WasRead(connection, found)

    def stop(self) -> None:
        """Read no more. What takes its time is not waited for."""
        with self._waking:
            self._is_stopped = True
        self._asked.put(None)
        connection = self._connection
        if connection is not None:
            with suppress(psycopg2.Error):
                connection.cancel()

    def _loop(self) -> None:
        try:
            while not self._is_stopped:
                self._read_in_turn(self._next())
        except Exception:
            logger.exception("The reader beside the senders has ended.")
            self._is_broken = True
            self._tell()
        finally:
            if self._connection is not None:
                self._connection.close()

    def _read_in_turn(self, wanted: list[Subject]) -> None:
        while wanted and not self._is_stopped:
            some = few(wanted)
            before = boot_clock()
            found = self._read(some)
            # The first one always fits. If there is nothing to be had of it, that is for who asked.
            found.setdefault(some[0].id, None)
            self._found.update(found)
            self.pace.took(boot_clock() - before)
            # Not all others may have fitted into what is read at once.
            wanted = [each for each in wanted if each.id not in found]
            self._tell()

    def _tell(self) -> None:
        with self._waking:
            if not self._is_stopped:
                self._wake()

    def _next(self) -> list[Subject]:
        """All that is asked for, when there is something."""
        asked = [self._asked.get()]
        with suppress(Empty):
            while True:
                asked.append(self._asked.get_nowait())
        return [each for each in asked if each is not None]

    def _read(self, some: Sequence[Subject]) -> dict[str, Stack | Closing | Exception | None]:
        with suppress(Exception):
            return {**read_at_once(self._connected(), some)}
        # One of them can't be read, or the connection broke: each by itself.
        found: dict[str, Stack | Closing | Exception | None] = {}
        for each in some:
            if self._is_stopped:
                break
            try:
                found.update(read_at_once(self._connected(), [each]))
            except Exception as error:
                logger.info("Delivery %s can't be read.", each.id, exc_info=True)
                # Without a connection it is no trouble of this delivery's.
                found[each.id] = error if self._is_connected() else None
        return found

    def _is_connected(self) -> bool:
        return self._connection is not None and not self._connection.closed

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self.url, application_name="pipeline reader")
        return self._connection
