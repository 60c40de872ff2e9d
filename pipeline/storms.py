"""Keeps a storm from filling the log: of lines of one kind so many a minute, and then their number.

For our own processes. A shop that embeds the pipeline has logging of its own, and may put the
filter on its handlers: `handler.addFilter(Storms(handler))`.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable

#: Lines of one kind in a minute that are written in full.
MOST = 50

#: How long a kind's lines are counted together, in seconds.
WINDOW = 60.0


class Storms(logging.Filter):
    """A filter for one handler. Lines are of one kind that have logger, level and template alike.

    What is left out is counted, and the count is written by the next line of any kind that comes
    after the minute, or at the end of the process: nothing is dropped without a word.

    Parameters:
      handler: Where the counts are written to; the one that has the filter.
      most: Lines of one kind in a minute.
      clock: Seconds, of a clock that goes forward only.
    """

    def __init__(
        self,
        handler: logging.Handler,
        *,
        most: int = MOST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._handler = handler
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        #: By kind: when its minute is over, and how many lines it has had.
        self._seen: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        if isinstance(record, _Count):
            return True
        kind = (record.name, record.levelno, str(record.msg))
        now = self._clock()
        with self._lock:
            over = [each for each, (until, _) in self._seen.items() if until <= now]
            counts = [(each, self._seen.pop(each)[1] - self._most) for each in over]
            until, count = self._seen.get(kind, (now + WINDOW, 0))
            self._seen[kind] = until, count + 1
        self._tell(counts)
        return count < self._most

    def close(self) -> None:
        """Write the counts that nobody has seen yet."""
        with self._lock:
            counts = [(each, count - self._most) for each, (_, count) in self._seen.items()]
            self._seen.clear()
        self._tell(counts)

    def _tell(self, counts: list[tuple[tuple[str, int, str], int]]) -> None:
        for (name, level, template), left_out in counts:
            if left_out > 0:
                self._handler.handle(
                    _Count(
                        name, level, "", 0,
                        "and %s more like this in that minute: %s",
                        (f"{left_out:,}", template.partition("\n")[0][:200]), None,
                    )
                )  # fmt: skip


class _Count(logging.LogRecord):
    """A line of ours, about others."""


def limit_storms(*handlers: logging.Handler) -> None:
    """Put the filter on handlers that don't have it."""
    for handler in handlers:
        if not any(isinstance(each, Storms) for each in handler.filters):
            storms = Storms(handler)
            handler.addFilter(storms)
            _limited.append(storms)


def tell_of_storms() -> None:
    """Write the counts of all filters: to be called before logging ends."""
    for storms in _limited:
        storms.close()


#: The filters of this process.
_limited: list[Storms] = []

atexit.register(tell_of_storms)
