"""Logging of the processes that run until they are stopped."""

from __future__ import annotations

import logging


def log_to_stderr() -> None:
    """Log to stderr, one line each, without what APScheduler says about every run of a job."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("apscheduler").setLevel(logging.WARNING)
