"""What a guard is, and how it is taken out."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

#: What a copy needs for tests to run in it.
PARTS = ("pipeline", "tests", "schema.sql", "scheduler.py", "pyproject.toml")


class NotThereError(LookupError):
    """The text that a mutation replaces is not in the code, or is there more than once."""


@dataclass(frozen=True)
class Guard:
    """One guard, the mutation that takes it out, and the test that misses it.

    Parameters:
      name: What it does.
      promise: Which part of the promise falls with it.
      path: The file that it is in, from the top of the checkout.
      old, new: The text that is replaced; white space counts as one space.
      test: The test that fails: a file below `tests`, `::` and the function's name.
    """

    name: str
    promise: str
    path: str
    old: str
    new: str
    test: str

    def mutated(self, text: str) -> str:
        """The file's text without the guard.

        Raises:
          NotThereError: It is not there exactly once.
        """
        pattern = r"\s+".join(re.escape(word) for word in self.old.split())
        found = list(re.finditer(pattern, text))
        if len(found) != 1:
            raise NotThereError(f"{self.path} has {self.old!r} {len(found)} times")
        return text[: found[0].start()] + self.new + text[found[0].end() :]


@dataclass(frozen=True)
class Verdict:
    """What became of a mutation: `killed` when its test failed, as it should."""

    guard: Guard
    killed: bool
    output: str


def copy_to(folder: Path) -> None:
    """A copy of the code that tests can run in."""
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, folder / part, ignore=ignored)
        else:
            shutil.copy(source, folder / part)


def run_test(folder: Path, test: str) -> tuple[int, str]:
    """Run one test in a copy.

    Returns:
      pytest's exit code (1: it failed), and what it wrote.
    """
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"),
            *("--timeout", "60", "--timeout-method", "thread", f"tests/{test}"),
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def break_guard(folder: Path, guard: Guard) -> Verdict:
    """Take the guard out of the copy, run its test, and put it back."""
    path = folder / guard.path
    whole = path.read_text()
    path.write_text(guard.mutated(whole))
    try:
        code, output = run_test(folder, guard.test)
    finally:
        path.write_text(whole)
    return Verdict(guard, killed=code == 1, output=output)
