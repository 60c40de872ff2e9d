"""The scheduler process: ticks, recovery and purging until SIGTERM or Ctrl-C."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType

from apscheduler.schedulers.background import BackgroundScheduler

from .doorbells import Doorbells
from .presence import Presence
from .process import make_broker
from .scheduling import Schedule
from .settings import Settings

logger = logging.getLogger(__name__)

#: Whether this machine's clock was set back is looked at this often, in seconds.
CLOCK_CHECK = 2.0


def run(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT. Must be called in the main thread.

    Parameters:
      settings: With `database_url`.
    """
    stop = threading.Event()

    def on_signal(signum: int, frame: FrameType | None) -> None:
        stop.set()

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, on_signal)
    scheduler = BackgroundScheduler(timezone="UTC")
    doorbells = Doorbells(make_broker(settings), senders=settings.senders)
    schedule = Schedule(settings.url, settings, doorbells)
    schedule.add_jobs(scheduler)
    presence = Presence(settings.url, "scheduler")
    presence.start()
    scheduler.start()
    logger.info("Scheduler is running, a tick every %s.", settings.stack_every)
    while not stop.wait(CLOCK_CHECK):
        schedule.catch_up(scheduler)
    logger.info("Scheduler is stopping.")
    scheduler.shutdown(wait=True)
    schedule.close()
    presence.stop()
