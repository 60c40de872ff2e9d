"""The demo that goes on until it is stopped."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from psycopg2.extensions import connection as Connection

from pipeline.database import connect, query, transaction
from pipeline.states import FINAL_STATES

from .activity import Tracker
from .installation import Installation
from .outcome import read_progress
from .writing import Writer

#: Seconds between two looks, and between two things that happen at once.
BEAT = 0.5


@dataclass(frozen=True, slots=True)
class Counts:
    """Where the demo stands."""

    written: int
    pending: int
    under_way: int
    deliveries: dict[str, int]
    mails: int


def run_live(
    installation: Installation,
    *,
    seed: int,
    rate: float,
    stop: threading.Event,
    show: Callable[[Counts], None],
) -> Counts:
    """Let things happen until `stop` is set.

    Parameters:
      installation: One that runs.
      rate: How many things happen in a second, on the average; each is told to several people.
      show: Told twice a second where things stand.

    Raises:
      DemoError: A process ended.
    """
    tracker = Tracker(seed)
    chance = random.Random(seed)
    written = 0
    with closing(connect(installation.database_url)) as connection:
        writer = Writer(connection, tracker)
        while True:
            # Things happen in bursts: that is what stacking is for.
            happens = rate * BEAT * (3 if chance.random() < 1 / 3 else 0)
            for _ in range(int(happens) + (chance.random() < happens % 1)):
                written += len(writer.write(tracker.happen()))
            counts = _count(connection, installation, written)
            show(counts)
            installation.check()
            if stop.wait(BEAT):
                return counts


def _count(connection: Connection, installation: Installation, written: int) -> Counts:
    with transaction(connection) as cursor:
        cursor.execute(query("status_notifications"))
        row = cursor.fetchone()
    assert row is not None
    _, deliveries = read_progress(connection)
    under_way = sum(number for state, number in deliveries.items() if state not in FINAL_STATES)
    return Counts(written, row[0], under_way, deliveries, installation.inbox.message_count)
