"""A worker process does not outlive the process that made it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.commands import ROOT, is_alive
from tests.support.waiting import wait_until

#: Makes a child as Dramatiq does, and is gone before the child asks to end with it.
PROGRAM = """
import multiprocessing, os, signal, sys, time
from pathlib import Path
from pipeline.process import end_with_parent

def child(parent):
    while os.getppid() == parent:
        time.sleep(0.01)
    Path(sys.argv[1]).write_text(str(os.getpid()))
    end_with_parent()
    Path(sys.argv[2]).touch()
    signal.pause()

multiprocessing.get_context("fork").Process(target=child, args=(os.getpid(),)).start()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_worker_whose_parent_died_while_it_was_made_ends(tmp_path: Path) -> None:
    """Linux tells of a parent's death only to those who asked before."""
    begun, survived = tmp_path / "begun", tmp_path / "survived"
    subprocess.run([sys.executable, "-c", PROGRAM, begun, survived], cwd=ROOT, check=False)
    wait_until(lambda: begun.exists() and begun.read_text())
    wait_until(lambda: not is_alive(int(begun.read_text())))
    assert not survived.exists()
