"""Schedulers and workers as real processes, to be killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).resolve().parents[2]


class Fleet:
    """Processes of one installation. All of them are killed when the block ends.

    Parameters:
      folder: Where their output goes, a file each.
      environment: `PIPELINE_*` settings.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.environment = {
            **{name: value for name, value in os.environ.items() if "PIPELINE_" not in name},
            **environment,
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
        }
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self.processes:
            self.kill(process)

    def scheduler(self) -> subprocess.Popen[bytes]:
        """`python scheduler.py`."""
        return self._start("scheduler", [sys.executable, str(ROOT / "scheduler.py")])

    def worker(self, *, processes: int = 1, threads: int = 2) -> subprocess.Popen[bytes]:
        """`dramatiq pipeline.worker`."""
        return self._start(
            "worker",
            [
                *(sys.executable, "-m", "dramatiq", "pipeline.worker"),
                *("--processes", str(processes), "--threads", str(threads)),
            ],
        )

    def command(self, *arguments: str) -> subprocess.Popen[bytes]:
        """`pipeline` with these arguments."""
        return self._start(arguments[0], [sys.executable, "-m", "pipeline", *arguments])

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """SIGKILL to the process and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)

    def freeze(self, process: subprocess.Popen[bytes]) -> None:
        """SIGSTOP to the process and all that it started."""
        os.killpg(process.pid, signal.SIGSTOP)

    def thaw(self, process: subprocess.Popen[bytes]) -> None:
        """SIGCONT to the process and all that it started."""
        os.killpg(process.pid, signal.SIGCONT)

    def stop(self, process: subprocess.Popen[bytes]) -> int:
        """SIGTERM to the process itself, and wait.

        Returns:
          Its exit code.
        """
        process.terminate()
        return process.wait(timeout=60)

    def output(self) -> str:
        """What all of them wrote."""
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')}"
            for path in sorted(self.folder.glob("*.log"))
        )

    def _start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        path = self.folder / f"{len(self.processes):02}-{name}.log"
        with path.open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)
        return process
