"""Worker processes of the shop in `broker_shop`, started and stopped by tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import dramatiq

from tests.support.broker import actor
from tests.support.postgres import execute
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]


class WorkerProcess:
    """One `dramatiq` command: a master and its workers, in a process group of their own."""

    def __init__(self, url: str, arguments: list[str], environment: dict[str, str], log: Path):
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dramatiq", "tests.support.broker_shop", *arguments],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment, "SHOP_URL": url},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def worker_pids(self) -> list[int]:
        """The processes that run the actors."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        found = []
        for child in children:
            with suppress(OSError):
                command = Path(f"/proc/{child}/cmdline").read_bytes()
                if b"resource_tracker" not in command:
                    found.append(int(child))
        return found

    def terminate(self, timeout: float = 30) -> int:
        """Ask it to stop and wait until it has."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def kill(self) -> None:
        """End the whole group at once, as a machine that loses its power does."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(60)

    def signal_group(self, number: int) -> None:
        """Send a signal to the master and all its workers."""
        os.killpg(self.pid, number)

    def text(self) -> str:
        """What it has printed so far."""
        return self.log.read_text(errors="replace")


@contextmanager
def worker(
    url: str,
    log: Path,
    *,
    kind: str = "mended",
    threads: int = 2,
    processes: int = 1,
    options: dict[str, Any] | None = None,
    arguments: tuple[str, ...] = (),
    environment: dict[str, str] | None = None,
) -> Iterator[WorkerProcess]:
    """Start a `dramatiq` command on the shop, wait until it is ready, and kill it at the end."""
    started = WorkerProcess(
        url,
        ["--processes", str(processes), "--threads", str(threads), *arguments],
        {
            "SHOP_BROKER": kind,
            "SHOP_OPTIONS": json.dumps(options or {}),
            **(environment or {}),
        },
        log,
    )
    try:
        wait_until(
            lambda: started.text().count("Worker process is ready for action") >= processes,
            timeout=30,
            message=started.text,
        )
        yield started
    finally:
        started.kill()


def sender(broker: dramatiq.Broker, name: str) -> dramatiq.Actor[..., Any]:
    """The shop's actor of this name, to send to."""
    return actor(broker, lambda *_: None, actor_name=name)


def times(url: str, name: str) -> Counter[Any]:
    """How often each value was noted under a name."""
    return Counter(row[1] for row in effects(url, name))


def effects(url: str, name: str | None = None) -> list[Any]:
    """What the shop's actors did: (name, value, message_id, pid, at), oldest first."""
    return execute(
        url,
        "SELECT name, value, message_id::text, pid, at FROM effect"
        " WHERE name = coalesce(%s, name) ORDER BY id",
        (name,),
    )


def states(url: str, table: str = "dramatiq.queue") -> dict[str, int]:
    """How many messages are in each state."""
    return dict(execute(url, f"SELECT state::text, count(*) FROM {table} GROUP BY 1"))
