"""The supervisor of `pipeline worker`, with children that are quicker than workers."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.support.commands import ROOT, environment, is_alive
from tests.support.waiting import wait_until

SCRIPT = """
import os, sys
from pipeline.cli.supervisor import Supervisor
child = [sys.executable, "-c", sys.argv[1], *sys.argv[2:]]
sys.exit(Supervisor(child, os.environ, pause=0.05, longest_pause=0.1, quick=5, tries=3).run())
"""

#: A child that writes its process id, and ends with status 5 when it is told to stop a second time.
PATIENT = """
import os, signal, sys, time
count = 0
def stop(signum, frame):
    global count
    count += 1
    print(signal.Signals(signum).name, file=open(sys.argv[1] + ".signals", "a"))
    if count > 1:
        os._exit(5)
signal.signal(signal.SIGTERM, stop)
print(os.getpid(), file=open(sys.argv[1], "a"))
while not count:
    time.sleep(0.01)
time.sleep(float(sys.argv[2]))
"""


def supervise(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *arguments],
        env=environment(),
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )


def pids(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def test_a_child_that_keeps_ending_is_given_up() -> None:
    """After a few quick ends in a row it says so and ends with 1."""
    supervisor = supervise("raise SystemExit(7)")

    _, told = supervisor.communicate(timeout=30)

    assert supervisor.returncode == 1
    assert told.count("starting them again") == 2
    assert "Giving up" in told
    assert "status 7" in told


def test_O01_a_child_that_was_killed_is_started_again(tmp_path: Path) -> None:
    """When the child dies another one takes its place."""
    file = tmp_path / "pids"
    supervisor = supervise(PATIENT, str(file), "0")
    first = wait_until(lambda: pids(file), 20)[0]

    subprocess.run(["kill", "-9", str(first)], check=True)
    second = wait_until(lambda: pids(file)[1:], 20)[0]
    supervisor.send_signal(signal.SIGTERM)

    assert supervisor.wait(20) == 0
    assert not is_alive(second)


def test_the_child_is_told_once_however_often_one_asks(tmp_path: Path) -> None:
    """A second signal is not handed on: it would cut off what is in hand."""
    file = tmp_path / "pids"
    supervisor = supervise(PATIENT, str(file), "1.0")
    wait_until(lambda: pids(file), 20)

    supervisor.send_signal(signal.SIGINT)
    signals = tmp_path / "pids.signals"
    wait_until(signals.exists, 20)
    supervisor.send_signal(signal.SIGINT)
    supervisor.send_signal(signal.SIGTERM)
    _, told = supervisor.communicate(timeout=20)

    assert supervisor.returncode == 0
    assert signals.read_text().split() == ["SIGTERM"]
    assert "Already stopping" in told


def test_a_child_that_ends_badly_when_it_is_told_to_stop_is_reported(tmp_path: Path) -> None:
    """The exit code tells when the child didn't stop in good order."""
    file = tmp_path / "pids"
    supervisor = supervise(PATIENT + "sys.exit(9)", str(file), "0")
    wait_until(lambda: pids(file), 20)

    supervisor.send_signal(signal.SIGTERM)
    _, told = supervisor.communicate(timeout=20)

    assert (supervisor.returncode, "status 9" in told) == (1, True)


def test_the_child_dies_with_its_supervisor(tmp_path: Path) -> None:
    """A supervisor that is killed leaves no child behind."""
    file = tmp_path / "pids"
    supervisor = supervise(PATIENT, str(file), "60")
    child = wait_until(lambda: pids(file), 20)[0]

    supervisor.kill()
    supervisor.wait()

    wait_until(lambda: not is_alive(child), 10)


def test_a_stop_during_the_pause_starts_nothing_more() -> None:
    """Told to stop while it waits to start the child again, it just ends."""
    script = SCRIPT.replace("pause=0.05, longest_pause=0.1", "pause=60, longest_pause=60")
    supervisor = subprocess.Popen(
        [sys.executable, "-c", script, "raise SystemExit(7)"],
        env=environment(),
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert supervisor.stderr is not None
    assert "starting them again in 1 min" in supervisor.stderr.readline()

    supervisor.send_signal(signal.SIGTERM)

    assert supervisor.wait(60) == 0
