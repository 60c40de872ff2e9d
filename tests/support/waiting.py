"""Waiting for a condition instead of sleeping and hoping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: What takes its time on a quiet machine may take so many times that on a busy one. A condition
#: that comes true ends the wait at once, so patience costs nothing but in tests that fail.
PATIENCE = 4


def wait_until(
    condition: Callable[[], T],
    timeout: float = 10,
    message: str | Callable[[], str] = "",
    interval: float = 0.02,
) -> T:
    """Ask again and again until the answer is truthy, and return that answer.

    Parameters:
      condition: asked every `interval` seconds, at least twice.
      timeout: seconds that it may take on a quiet machine; `PATIENCE` times that is the deadline.
      message: what was waited for; a callable is asked when the time is up, so that it can
        tell the state of things at that moment.

    Raises:
      AssertionError: the condition did not come true in time. What the condition raises
        itself goes through.
    """
    timeout *= PATIENCE
    deadline = time.monotonic() + timeout
    while True:
        out_of_time = time.monotonic() >= deadline
        if answer := condition():
            return answer
        if out_of_time:
            told = message() if callable(message) else message
            raise AssertionError(
                f"not within {timeout:g} s: {told or condition} (last: {answer!r})"
            )
        time.sleep(interval)


def stays_true(condition: Callable[[], object], seconds: float, interval: float = 0.02) -> None:
    """Ask again and again for so many seconds; the answer must be truthy each time.

    For what must not happen: it fails at the moment at which it does.

    Raises:
      AssertionError: the condition was not true at some time.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        answer = condition()
        assert answer, f"did not stay true: {condition} (last: {answer!r})"
        time.sleep(interval)
