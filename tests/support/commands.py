"""Runs `pipeline`'s commands: in this process, or as processes of their own."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from pipeline.cli import main
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of a command."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def settings_environment(database_url: str | None, **settings: object) -> dict[str, str]:
    """The environment that says so: `smtp_url=…` becomes `PIPELINE_SMTP_URL`."""
    given = {f"PIPELINE_{name.upper()}": str(value) for name, value in settings.items()}
    return given if database_url is None else {"PIPELINE_DATABASE_URL": database_url, **given}


def run(*arguments: str, database_url: str | None = None, **settings: object) -> Ran:
    """Run a command in this process, as if nobody were at a terminal."""
    out, err = io.StringIO(), io.StringIO()
    environment = settings_environment(database_url, **settings)
    with (
        mock.patch.dict(os.environ, environment),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        status = main(arguments)
    return Ran(status, out.getvalue(), err.getvalue())


def environment(database_url: str | None = None, **settings: object) -> dict[str, str]:
    """This process's environment with those settings and no others."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PIPELINE_")}
    return plain | {"PYTHONPATH": str(ROOT)} | settings_environment(database_url, **settings)


class Running:
    """A command as a process of its own, in a session of its own, its talk in a file.

    Parameters:
      log: Where stderr goes, and stdout unless there is an `out`.
    """

    def __init__(
        self,
        log: Path,
        *arguments: str,
        environment: dict[str, str],
        out: Path | None = None,
    ) -> None:
        self.log = log
        with log.open("ab") as stream, (out or log).open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pipeline", *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=stream,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def said(self) -> str:
        """What it has said so far."""
        return self.log.read_text(errors="replace")

    def wait_for(self, text: str, timeout: float = 30) -> None:
        """Wait until it has said this."""
        wait_until(
            lambda: text in self.said or self.process.poll() is not None,
            timeout,
            lambda: f"{text!r} in: {self.said}",
        )
        assert text in self.said, self.said

    def stop(self, signum: int = signal.SIGTERM, timeout: float = 90) -> int:
        """Tell it to stop, and return its exit status."""
        self.process.send_signal(signum)
        return self.process.wait(timeout)

    def kill(self) -> None:
        """End it whatever it is doing."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def running(
    log: Path, *arguments: str, environment: dict[str, str], out: Path | None = None
) -> Iterator[Running]:
    """A command that runs as long as the block, unless it has ended before."""
    command = Running(log, *arguments, environment=environment, out=out)
    try:
        yield command
    finally:
        command.kill()


def descendants(pid: int) -> list[int]:
    """The process ids of all children of a process and of theirs."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            found.append(child)
            waiting.append(child)
    return found


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that only waits to be reaped doesn't."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def run_on_terminal(*arguments: str, environment: dict[str, str], columns: int = 100) -> str:
    """Run a command on a terminal of this width, and return everything that it wrote there."""
    # Sizes and colours that the test run itself was told.
    told = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
    surroundings = {
        name: value
        for name, value in environment.items()
        if name not in told or os.environ.get(name) != value
    } | {"TERM": "xterm-256color"}
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline", *arguments],
        env=surroundings,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    written = b""
    with contextlib.suppress(OSError):  # how the end of a terminal is told
        while part := os.read(master, 65536):
            written += part
    os.close(master)
    process.wait(60)
    return written.decode("utf-8", "replace")
