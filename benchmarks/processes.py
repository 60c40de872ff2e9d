"""The real processes: workers, a scheduler, the sink, and what they cost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from benchmarks.bench import Database

ROOT = Path(__file__).resolve().parent.parent


class Sink:
    """The sink, as a process of its own."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.sink"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.url = f"smtp://127.0.0.1:{self.port}"
        #: When each mail was taken, by `time.monotonic`; known when it was closed.
        self.taken_at: list[float] = []
        self.most_connections = 0

    def close(self) -> int:
        """End it; how many mails it took."""
        told, _ = self.process.communicate(timeout=30)
        self.taken_at, self.most_connections = json.loads(told or "[[], 0]")
        return len(self.taken_at)


@contextmanager
def sink() -> Iterator[Sink]:
    """A sink for the time of a block."""
    opened = Sink()
    try:
        yield opened
    finally:
        if opened.process.poll() is None:
            opened.close()


class Fleet:
    """Workers and schedulers of one installation."""

    def __init__(self, folder: Path, database: Database, **environment: str) -> None:
        self.folder = folder
        self.environment = {
            **{name: value for name, value in os.environ.items() if "PIPELINE_" not in name},
            "PIPELINE_DATABASE_URL": database.url,
            "PIPELINE_MAIL_FROM": database.settings.mail_from,
            **environment,
            "PYTHONPATH": str(ROOT),
        }
        self.started: list[subprocess.Popen[bytes]] = []

    def worker(self, *, processes: int, threads: int) -> subprocess.Popen[bytes]:
        """`dramatiq pipeline.worker`."""
        return self._start(
            *("-m", "dramatiq", "pipeline.worker"),
            *("--processes", str(processes), "--threads", str(threads)),
        )

    def scheduler(self) -> subprocess.Popen[bytes]:
        """`python scheduler.py`."""
        return self._start(str(ROOT / "scheduler.py"))

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        log = self.folder / f"fleet-{os.getpid()}-{len(self.started)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def stop(self) -> None:
        """End them all: asked first, then made to."""
        for process in self.started:
            process.terminate()
        for process in self.started:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@contextmanager
def fleet(folder: Path, database: Database, **environment: str) -> Iterator[Fleet]:
    """Processes for the time of a block."""
    opened = Fleet(folder, database, **environment)
    try:
        yield opened
    finally:
        opened.stop()


def children(pid: int) -> list[int]:
    """A process and all that it started, by /proc."""
    try:
        own = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return [pid]
    return [pid, *(each for child in own for each in children(int(child)))]


def resident_megabytes(pid: int) -> float:
    """What a process has in memory."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return 0.0


class Watcher:
    """Looks at the memory of processes, now and then, in a thread."""

    def __init__(self, pids: list[int], interval: float = 0.1) -> None:
        self.pids = pids
        self.interval = interval
        self.seen: list[tuple[float, float]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def highest(self) -> float:
        """Megabytes of the largest process at its largest."""
        return max((size for _, size in self.seen), default=0.0)

    def _look(self) -> None:
        started = time.monotonic()
        while not self._stop.wait(self.interval):
            largest = max(resident_megabytes(pid) for pid in self.pids)
            self.seen.append((time.monotonic() - started, largest))


def wait_until(is_true: object, timeout: float = 300.0, interval: float = 0.1) -> None:
    """Wait for a condition.

    Raises:
      TimeoutError: When it doesn't come.
    """
    assert callable(is_true)
    deadline = time.monotonic() + timeout
    while not is_true():
        if time.monotonic() > deadline:
            raise TimeoutError("a benchmark waited in vain")
        time.sleep(interval)
