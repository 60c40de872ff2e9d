"""Processes of a test's own, some of them another user's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run Python code in a new process to its end, with the arguments in `sys.argv[1:]`."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def become(uid: int) -> None:
    """Turn this process, if it is root's, into one of another user's.

    What it needs from folders that are closed to that user it has to import before.
    """
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
