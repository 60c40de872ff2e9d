"""The processes of a run: the product's own commands, started again whenever they have died."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from pipeline.demonstration.services import Service, stop_services

#: Seconds between a process's end and its next start.
PAUSE = 0.3

#: Seconds by which the clocks of some processes are wrong.
CLOCKS = {"worker-1": 420.0, "worker-2": -300.0, "scheduler-1": -180.0}

#: Goes on PYTHONPATH of a process whose clock is to be wrong.
CLOCK = Path(__file__).parent / "clock"


class Fleet:
    """Two schedulers, three workers and two applications, each under its own name.

    Parameters:
      environment: Of all processes.
      logs: A folder; each start of each process has a file of its own.
      written: A folder for what the applications have committed.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        logs: Path,
        written: Path,
        *,
        rate: float,
        receivers: int,
        items: int,
    ) -> None:
        self._environment = dict(environment)
        self._logs = logs
        self._starts: dict[str, int] = {}
        self._running: dict[str, Service] = {}
        self._due: dict[str, float] = {}
        self._stopped: dict[int, float] = {}
        self._commands: dict[str, tuple[str, ...]] = {
            "scheduler-0": ("pipeline", "scheduler"),
            "scheduler-1": ("pipeline", "scheduler"),
            **{
                f"worker-{n}": ("pipeline", "worker", "--processes", "1", "--threads", "4")
                for n in range(3)
            },
            **{
                f"producer-{n}": (
                    "pipeline.chaos.producer", "--rate", str(rate / 2),
                    "--receivers", str(receivers), "--items", str(items),
                    "--written", str(written / f"producer-{n}"),
                )
                for n in range(2)
            },
        }  # fmt: skip
        written.mkdir(parents=True, exist_ok=True)

    def supervise(self) -> None:
        """Start what doesn't run, after a pause; call it often, from the main thread."""
        now = time.monotonic()
        for name in self._commands:
            service = self._running.get(name)
            if service is not None and service.is_running:
                continue
            if service is not None:
                del self._running[name]
                self._due[name] = now + PAUSE
            elif self._due.get(name, 0) <= now:
                self._running[name] = self._start(name)

    def kill(self, share: float) -> str | None:
        """SIGKILL one process, be it a command or a child of one.

        Returns:
          Its name; None when nothing runs.
        """
        found = self._pick(share)
        if found is None:
            return None
        pid, name = found
        return name if _signal(pid, signal.SIGKILL) else None

    def freeze(self, share: float) -> int | None:
        """SIGSTOP one process.

        Returns:
          Its process id, for `thaw`.
        """
        found = self._pick(share)
        if found is None or not _signal(found[0], signal.SIGSTOP):
            return None
        return found[0]

    @staticmethod
    def thaw(pid: int) -> None:
        """SIGCONT it, if it is still there."""
        _signal(pid, signal.SIGCONT)

    def stop_producers(self) -> None:
        """No more notifications."""
        producers = [name for name in self._commands if name.startswith("producer")]
        for name in producers:
            del self._commands[name]
        stop_services(
            service for name in producers if (service := self._running.pop(name, None)) is not None
        )

    def stop(self) -> None:
        """End all of it."""
        stop_services(self._running.values())
        self._running.clear()

    @property
    def start_count(self) -> int:
        """Processes that were started."""
        return sum(self._starts.values())

    def _start(self, name: str) -> Service:
        number = self._starts[name] = self._starts.get(name, 0) + 1
        module, *arguments = self._commands[name]
        if name.startswith("producer"):
            # Its tokens are not those of its former lives.
            arguments += ["--name", f"n{name[-1]}x{number}"]
        environment = self._environment
        if name in CLOCKS:
            path = [str(CLOCK), *filter(None, [environment.get("PYTHONPATH")])]
            environment = environment | {
                "PYTHONPATH": os.pathsep.join(path),
                "PIPELINE_CHAOS_CLOCK": str(CLOCKS[name]),
            }
        return Service(
            *arguments,
            module=module,
            environment=environment,
            log=self._logs / f"{name}-{number}.log",
        )

    def _pick(self, share: float) -> tuple[int, str] | None:
        processes = [
            (pid, name)
            for name, service in sorted(self._running.items())
            if service.is_running
            for pid in _family(service.pid)
        ]
        return processes[int(share * len(processes))] if processes else None


def _family(pid: int) -> list[int]:
    """A process and its descendants; only itself where there is no /proc."""
    children: dict[int, list[int]] = {}
    if sys.platform == "linux":
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    family = [pid]
    for member in family:
        family += sorted(children.get(member, []))
    return family


def _signal(pid: int, signum: int) -> bool:
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return False
    return True
