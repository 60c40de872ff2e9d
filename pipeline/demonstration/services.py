"""The demo's scheduler and worker: the same commands that anybody runs, as child processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from pipeline.tied import tied

#: Seconds that a service has to stop before it is killed.
PATIENCE = 20.0


class DemoError(RuntimeError):
    """The demo can't go on; the text says why."""


class Service:
    """One command in a process of its own, which dies with this one and logs to a file.

    Parameters:
      arguments: As for `pipeline`.
      module: Run as a program, in place of `pipeline`.
    """

    def __init__(
        self,
        *arguments: str,
        environment: Mapping[str, str],
        log: Path,
        module: str = "pipeline",
    ) -> None:
        self.name = arguments[0]
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as stream:
            self._process = subprocess.Popen(
                tied([sys.executable, "-m", module, *arguments]),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                # Ctrl-C reaches it only through `stop`.
                process_group=0,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def check(self) -> None:
        """Nothing, as long as it runs.

        Raises:
          DemoError: It has ended; with the last that it said.
        """
        status = self._process.poll()
        if status is not None:
            last = self.log.read_text(errors="replace").splitlines()[-15:]
            raise DemoError(
                f"the {self.name} ended with status {status}; the last that it said:\n"
                + "\n".join(f"  {line}" for line in last)
            )

    def terminate(self) -> None:
        """Tell it to stop."""
        self._process.terminate()

    def wait(self, patience: float) -> None:
        """Wait until it has stopped, and kill it if that takes too long."""
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            # Its own children die with it; the group goes for systems that can't promise it.
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def stop_services(services: Iterable[Service]) -> None:
    """Tell all of them to stop, wait for them, and kill those that don't."""
    running = list(services)
    for service in running:
        service.terminate()
    deadline = time.monotonic() + PATIENCE
    for service in running:
        service.wait(max(deadline - time.monotonic(), 0.1))
