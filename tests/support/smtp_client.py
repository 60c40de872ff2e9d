"""Sending through a `Session` in tests, with the little that every test needs of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Self

from pipeline.smtp import Relay, Result, Session, Timeouts

#: Long enough for a busy machine, short enough for a test that waits for one to pass.
QUICK = Timeouts(connect=5.0, command=5.0, data=5.0, reply=5.0)

CONTENT = b"Message-ID: <1@example.org>\r\nSubject: Hello\r\n\r\nHello, Ada.\r\n"


def session(
    url: str,
    timeouts: Timeouts = QUICK,
    *,
    messages_per_session: int = 100,
    idle_check: float = 10.0,
) -> Session:
    return Session(
        Relay.from_url(url),
        timeouts=timeouts,
        local_hostname="worker.example.org",
        messages_per_session=messages_per_session,
        idle_check=idle_check,
    )


def send(
    session: Session,
    to: str = "ada@example.org",
    content: bytes = CONTENT,
    before_dot: Callable[[], bool] = lambda: True,
) -> Result:
    return session.send("pipeline@example.org", to, content, before_dot)


def send_once(
    url: str,
    timeouts: Timeouts = QUICK,
    *,
    content: bytes = CONTENT,
    before_dot: Callable[[], bool] = lambda: True,
) -> Result:
    """One message over a session of its own."""
    one = session(url, timeouts)
    try:
        return send(one, content=content, before_dot=before_dot)
    finally:
        one.close()


class Stopwatch:
    """How long the block took, in `seconds`."""

    seconds: float

    def __enter__(self) -> Self:
        self._started_at = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.monotonic() - self._started_at
