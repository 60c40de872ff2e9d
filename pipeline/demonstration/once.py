"""The demo that ends: so many notifications, all the way, and a look at what became of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing

from pipeline.database import connect

from .activity import Tracker
from .installation import Installation
from .outcome import Outcome, read_outcome, read_progress
from .rows import Row
from .writing import Writer

#: Notifications written in one transaction.
BATCH = 100

#: Seconds between two looks.
LOOK = 0.1


class Stopped(Exception):
    """The person had enough before the end."""


def run_once(
    installation: Installation,
    *,
    count: int,
    seed: int,
    timeout: float,
    stop: threading.Event,
    on_progress: Callable[[int, int], None] = lambda written, finished: None,
) -> Outcome:
    """Make notifications, and wait until every one of them is final.

    Parameters:
      installation: One that runs, with nothing in it.
      count: How many notifications.
      timeout: Seconds after which to look at what there is by then.
      stop: Set when the person has had enough.
      on_progress: Told how many were written and how many are final.

    Raises:
      DemoError: A process ended.
      Stopped: `stop` was set.
    """
    tracker = Tracker(seed, item_count=max(12, count // 40))
    ids: list[str] = []
    with closing(connect(installation.database_url)) as connection:
        writer = Writer(connection, tracker)
        started = time.monotonic()
        finished = 0
        in_time = True
        while in_time and (len(ids) < count or finished < count):
            if stop.is_set():
                raise Stopped
            installation.check()
            in_time = time.monotonic() - started < timeout
            if len(ids) < count:
                ids += writer.write(_rows(tracker, min(BATCH, count - len(ids))))
            else:
                stop.wait(LOOK)
            finished, _ = read_progress(connection)
            on_progress(len(ids), finished)
        return read_outcome(
            connection,
            installation.inbox,
            ids,
            seconds=time.monotonic() - started,
            in_time=in_time,
        )


def _rows(tracker: Tracker, count: int) -> list[Row]:
    rows: list[Row] = []
    while len(rows) < count:
        rows += tracker.happen()
    return rows[:count]
