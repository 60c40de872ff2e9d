"""Commands as a person types them, in an environment where they are all on the path."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from pipeline.embedded.binaries import find_binaries

ROOT = Path(__file__).resolve().parents[2]


def make_commands(folder: Path) -> None:
    """Put `python`, `pip`, `pipeline`, `dramatiq` and `psql` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    python = shlex.quote(sys.executable)
    psql = shlex.quote(str(find_binaries().folder / "psql"))
    for name, command in (
        ("python", python),
        ("python3", python),
        ("pipeline", f"{python} -m pipeline"),
        ("dramatiq", f"{python} -m dramatiq"),
        ("psql", f"{psql} --no-psqlrc"),
    ):
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        path.chmod(0o755)
    # What is to be installed is what is being tested: only its name is looked at.
    path = folder / "pip"
    path.write_text(f'#!/bin/sh\ntest "$*" = "install {distribution()}"\n')
    path.chmod(0o755)


def distribution() -> str:
    """The name that this is installed by."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return str(project["name"])


class Terminal:
    """Runs commands and starts processes in one folder; what was started ends with the block.

    Parameters:
      scratch: For the commands and the processes' output.
      folder: Where they run.
      environment: `PIPELINE_*` settings and whatever else.
    """

    def __init__(self, scratch: Path, folder: Path, environment: Mapping[str, str]) -> None:
        self.scratch = scratch
        self.folder = folder
        make_commands(scratch / "bin")
        kept = {name: value for name, value in os.environ.items() if "PIPELINE_" not in name}
        self.environment = {
            **kept,
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            **environment,
            "PATH": f"{scratch / 'bin'}{os.pathsep}{kept.get('PATH', os.defpath)}",
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

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """SIGKILL to the process and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)

    def run(self, script: str, *, timeout: float = 60) -> str:
        """Run a shell script; the first command that fails ends it.

        Returns:
          What it printed.

        Raises:
          AssertionError: When it failed, with everything that it printed.
        """
        done = subprocess.run(
            ["/bin/sh", "-eu", "-c", script],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}\n{self.output()}"
        return done.stdout

    def start(self, command: str) -> subprocess.Popen[bytes]:
        """Start one command in a process group of its own."""
        log = self.scratch / f"{len(self.processes):02}.log"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                ["/bin/sh", "-eu", "-c", f"exec {command}"],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def stop(self, process: subprocess.Popen[bytes], timeout: float = 60) -> int:
        """Send SIGTERM to the process itself, and wait.

        Returns:
          Its exit status.
        """
        process.terminate()
        return process.wait(timeout=timeout)

    def output(self) -> str:
        """What the processes have printed so far."""
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')}"
            for path in sorted(self.scratch.glob("*.log"))
        )
