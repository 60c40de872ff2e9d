"""Counts a process's I/O calls, SQL and SMTP, and breaks the one that it was told to.

Only calls of the main thread are counted, and of the turn's that it waits for: what the keeper of
leases does beside them depends on time.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, TypeVar

import psycopg2
from psycopg2 import extensions

T = TypeVar("T")
When = Literal["before", "after"]

#: What can happen at a point. `cut` is the connection of that call; the rest are SQLSTATEs that the
#: server answers in place of the call, or the end of the session (57P01).
ERRORS = ("40001", "40P01", "25006", "53100", "57014", "57P01")
FAULTS = ("kill", "freeze", "cut", *ERRORS)

#: How long a frozen process sleeps, in seconds, by its own clocks.
FROZEN = 600.0


class Points:
    """The calls of this process, in their order.

    Parameters:
      fault: One of `FAULTS`, or None to count only.
      at: The call that is broken, from 1.
    """

    def __init__(self, fault: str | None, at: int, when: When) -> None:
        self.fault = fault
        self.at = at
        self.when = when
        self.labels: list[str] = []
        self._slept = 0.0

    @property
    def reached(self) -> bool:
        return self.fault is None or len(self.labels) >= self.at

    def around(self, label: str, call: Callable[[], T], breaking: Callable[[When, str], None]) -> T:
        """Make a call, and break it if it is its turn: `breaking` raises, or lets it be made."""
        if threading.current_thread().name not in ("MainThread", "pipeline-turn"):
            return call()
        self.labels.append(label)
        chosen = self.fault is not None and len(self.labels) == self.at
        if chosen and self.when == "before":
            self._break(breaking)
        try:
            return call()
        finally:
            if chosen and self.when == "after":
                self._break(breaking)

    def _break(self, breaking: Callable[[When, str], None]) -> None:
        assert self.fault is not None
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.fault == "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
            self._slept += FROZEN
        else:
            breaking(self.when, self.fault)

    def install(self) -> None:
        """Replace the classes that do I/O, and the clocks that go on while a process is frozen."""
        points = self
        clock_gettime, monotonic, connect = time.clock_gettime, time.monotonic, psycopg2.connect

        def connect_counted(*arguments: Any, **options: Any) -> Any:
            return points.around(
                "sql connect",
                lambda: connect(*arguments, connection_factory=Connection, **options),
                _refuse_connection,
            )

        class Cursor(extensions.cursor):
            def execute(self, query: Any, vars: Any = None) -> None:  # noqa: A002
                text = query if isinstance(query, str) else query.as_string(self)
                label = f"sql {_told(text)}"
                points.around(
                    label,
                    lambda: super(Cursor, self).execute(text, vars),
                    lambda when, fault: _break_session(
                        self.connection, when, fault, commits=text == "COMMIT"
                    ),
                )

        class Connection(extensions.connection):
            def cursor(self, *arguments: Any, **options: Any) -> Any:
                return super().cursor(*arguments, **{"cursor_factory": Cursor, **options})

            def commit(self) -> None:
                points.around(
                    "sql commit()",
                    super().commit,
                    lambda when, fault: _break_session(self, when, fault, commits=True),
                )

        class Socket(socket.socket):
            def connect(self, address: Any) -> None:
                self._around("smtp connect", lambda: super(Socket, self).connect(address))

            def send(self, data: Any, flags: int = 0) -> int:
                label = f"smtp send {bytes(data[:12])!r}"
                return self._around(label, lambda: super(Socket, self).send(data, flags))

            def recv(self, size: int, flags: int = 0) -> bytes:
                # To look whether there is something is no step: how often that is done is chance.
                super().recv(1, flags | socket.MSG_PEEK)
                return self._around("smtp recv", lambda: super(Socket, self).recv(size, flags))

            def _around(self, label: str, call: Callable[[], T]) -> T:
                return points.around(label, call, lambda when, fault: _cut(self))

        psycopg2.connect = connect_counted
        socket.socket = Socket  # type: ignore[misc]
        time.clock_gettime = lambda clock: clock_gettime(clock) + points._slept
        time.monotonic = lambda: monotonic() + points._slept


def _told(text: str) -> str:
    lines = [line for line in text.splitlines() if line and not line.lstrip().startswith("--")]
    return " ".join(" ".join(lines).split())[:60]


def _refuse_connection(when: When, fault: str) -> None:
    raise psycopg2.OperationalError(f"could not connect to server: {fault} {when}")


def _cut(connected: socket.socket) -> None:
    with suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)


def _break_session(connection: Any, when: When, fault: str, *, commits: bool) -> None:
    """Break it as the server or the network would: psycopg2 finds it out by itself."""
    with extensions.cursor(connection) as cursor:
        if fault == "cut":
            with socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as raw:
                _cut(raw)
            cursor.execute("SELECT 'nobody hears this'")
        elif fault == "57P01":
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        elif when == "before":
            try:
                cursor.execute(
                    f"DO $$ BEGIN RAISE EXCEPTION 'broken here' USING ERRCODE = '{fault}'; END $$"
                )
            finally:
                if commits:
                    # A COMMIT that fails ends the transaction all the same.
                    cursor.execute("ROLLBACK")
