"""Servers, tables, worker processes and measurements for the broker's benchmark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import dramatiq
import psycopg2
from dramatiq_pg import broker as dramatiq_pg_broker
from dramatiq_pg import generate_init_sql

from benchmarks.broker_shop import NUMBERS, TIMES, make_broker
from pipeline.embedded import EmbeddedPostgres
from pipeline.outbox import enqueue

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("stock", "mended")


@contextmanager
def server(**settings: str) -> Iterator[EmbeddedPostgres]:
    """A Postgres with fsync on and the given settings, in a folder of its own."""
    folder = Path(tempfile.gettempdir(), f"broker-bench-{uuid.uuid4().hex[:8]}")
    with EmbeddedPostgres(
        folder, temporary=True, settings={"shared_buffers": "256MB", **settings}
    ) as started:
        started.create_database("bench")
        yield started


def rows(url: str, statement: str, parameters: Any = None) -> list[Any]:
    """Run one statement by itself."""
    with closing(psycopg2.connect(url)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            return cursor.fetchall() if cursor.description else []


@dataclass
class Bench:
    """A fresh table for one kind of broker, and what is run on it."""

    url: str
    kind: str
    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def actor(self, name: str, **options: Any) -> dramatiq.Actor[..., Any]:
        """One of the shop's actors, to send to."""
        broker = self.broker(**options)
        return dramatiq.actor(lambda *_: None, broker=broker, actor_name=name)

    def broker(self, **options: Any) -> Any:
        """A broker to send with, as a shop's web process has one."""
        return make_broker(self.kind, self.url, **options)

    def fill(self, count: int, name: str = "noop", *args: Any) -> None:
        """Put messages numbered from 0 into the queue, many at a time."""
        actor = self.actor(name)
        with closing(psycopg2.connect(self.url)) as connection, connection.cursor() as cursor:
            for first in range(0, count, 10_000):
                numbers = range(first, min(count, first + 10_000))
                messages = [actor.message(number, *args) for number in numbers]
                enqueue(cursor, *messages, broker=actor.broker)
                connection.commit()
            connection.autocommit = True
            cursor.execute("VACUUM ANALYZE dramatiq.queue")
        close(actor.broker)

    def start(
        self, *, processes: int = 1, threads: int = 8, prefetch: int = 0, **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start a `dramatiq` command, in a process group of its own."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "BENCH_URL": self.url,
            "BENCH_BROKER": self.kind,
            "BENCH_OPTIONS": json.dumps(options),
            "BENCH_TALLY": str(self.folder),
        }
        if prefetch:
            environment["dramatiq_queue_prefetch"] = str(prefetch)
        command = [sys.executable, "-m", "dramatiq", "benchmarks.broker_shop"]
        command += ["--processes", str(processes), "--threads", str(threads)]
        with (self.folder / f"log-{uuid.uuid4().hex[:6]}").open("wb") as log:
            started = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(started)
        return started

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """End a command and its workers at once."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)

    def counts(self) -> bytes:
        """How often each message was run, over all processes."""
        found = [one[:NUMBERS] for one in self._tallies()]
        if not found:
            return b""
        total = int.from_bytes(found[0], "little")
        # Added as one big number: no count ever gets near 256.
        for one in found[1:]:
            total += int.from_bytes(one, "little")
        return total.to_bytes(len(found[0]) + 1, "little")

    def _tallies(self) -> list[bytes]:
        return [path.read_bytes() for path in self.folder.iterdir() if path.name.isdigit()]

    def run_count(self) -> int:
        """How many runs there were."""
        return sum(sum(one[:NUMBERS]) for one in self._tallies())

    def run_rate(self) -> float:
        """Runs a second, from the first to the last, by the workers' own notes."""
        times = [TIMES.unpack_from(one, NUMBERS) for one in self._tallies()]
        ran = [(first, last) for first, last in times if first]
        if not ran:
            return 0.0
        seconds: float = max(last for _, last in ran) - min(first for first, _ in ran)
        return self.run_count() / max(seconds, 0.001)

    def states(self) -> dict[str, int]:
        """How many messages are in which state."""
        return dict(rows(self.url, "SELECT state::text, count(*) FROM dramatiq.queue GROUP BY 1"))

    def memory_mb(self) -> float:
        """Resident memory of the largest worker process."""
        sizes = [0]
        for process in self.processes:
            with suppress(OSError):
                children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
                for child in children.split():
                    status = Path(f"/proc/{child}/status").read_text()
                    sizes += [int(x.split()[1]) for x in status.splitlines() if "VmRSS" in x]
        return max(sizes) / 1024


@contextmanager
def bench(postgres: EmbeddedPostgres, kind: str) -> Iterator[Bench]:
    """A database of its own, gone afterwards with all that was started on it."""
    name = f"bench_{uuid.uuid4().hex[:8]}"
    postgres.create_database(name)
    url = postgres.dsn(name)
    rows(url, generate_init_sql())
    dramatiq_pg_broker.QUERIES.build_queries("dramatiq", "")
    with tempfile.TemporaryDirectory(prefix="broker-bench-") as folder:
        made = Bench(url, kind, Path(folder))
        if kind == "mended":
            broker = made.broker()
            broker.prepare()
            close(broker)
        try:
            yield made
        finally:
            for process in made.processes:
                made.kill(process)
            rows(postgres.dsn("postgres"), f'DROP DATABASE "{name}" WITH (FORCE)')


def close(broker: Any) -> None:
    """Close a broker of either kind; the stock one can't do it itself."""
    broker.pool.closeall()


def wait_for(condition: Callable[[], bool], timeout: float, interval: float = 0.1) -> float | None:
    """Seconds until a condition was true, or None if it wasn't in time."""
    started = time.monotonic()
    while time.monotonic() - started < timeout:
        if condition():
            return time.monotonic() - started
        time.sleep(interval)
    return None


class Peak:
    """The highest value that something had, asked a few times a second in the background."""

    def __init__(self, ask: Callable[[], float], every: float = 0.25) -> None:
        self._ask = ask
        self._every = every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.value = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(5)

    def _watch(self) -> None:
        while not self._stop.wait(self._every):
            with suppress(psycopg2.Error):
                self.value = max(self.value, self._ask())


def lock_count(url: str) -> float:
    """How many advisory locks are held."""
    return float(rows(url, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")[0][0])
