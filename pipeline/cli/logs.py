"""Logging of the processes that run until they are stopped."""

from __future__ import annotations

import logging

from pipeline.storms import limit_storms


def log_to_stderr() -> None:
    """Log to stderr, one line each, without what APScheduler says about every run of a job.

    In a storm lines of one kind are counted, not written: see `storms`.
    """
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    limit_storms(*logging.getLogger().handlers)
    logging.getLogger("apscheduler").setLevel(logging.WARNING)
