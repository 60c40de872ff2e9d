"""Commands that run until the person has had enough."""

from __future__ import annotations

import signal
import threading


def stop_on_signals() -> threading.Event:
    """An event that Ctrl-C, SIGTERM and a terminal that goes away set, in place of what they do."""
    stop = threading.Event()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, lambda *_: stop.set())
    return stop
