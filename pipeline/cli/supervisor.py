"""Keeps a child process running until it is told to stop.

Dramatiq's command line ends as a whole when one of its worker processes dies, and a message that
was being worked on is found again soonest by a fresh start: so there has to be somebody who starts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from types import FrameType

from pipeline.tied import tied

from .output import say, span


class Supervisor:
    """Runs a command again and again.

    The child has a process group of its own: a Ctrl-C reaches it only through here, once, since
    Dramatiq takes a second signal as the order to cut what is running. It dies with this process.

    Parameters:
      command: What to run; told to stop by SIGTERM.
      environment: Its environment.
      pause: Seconds before it is started again; doubled each time that it ends quickly.
      longest_pause: Where the doubling stops, in seconds.
      quick: It ended quickly when it ran for less than so many seconds.
      tries: After so many quick ends in a row it is given up.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        pause: float = 0.5,
        longest_pause: float = 30.0,
        quick: float = 10.0,
        tries: int = 12,
    ) -> None:
        self.command = list(command)
        self.environment = dict(environment)
        self.pause = pause
        self.longest_pause = longest_pause
        self.quick = quick
        self.tries = tries
        self._child: subprocess.Popen[bytes] | None = None
        self._stop = threading.Event()

    def run(self) -> int:
        """Run until SIGTERM, SIGINT or SIGHUP. Must be called in the main thread.

        Returns:
          The exit code: 0 when it ended as it was told to, 1 when the child did not, or was given
          up.
        """
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, self._on_signal)
        quick_count = 0
        while True:
            started = time.monotonic()
            status = self._run_once()
            if self._stop.is_set():
                if status in (0, -signal.SIGTERM):
                    return 0
                say(f"Workers ended with status {status} while they were stopping.")
                return 1
            ran = time.monotonic() - started
            quick_count = quick_count + 1 if ran < self.quick else 0
            if quick_count >= self.tries:
                say(
                    f"Workers ended {quick_count} times in a row within {span(self.quick)} of "
                    "their start. Giving up: what they said above tells why."
                )
                return 1
            pause = min(self.pause * 2 ** max(quick_count - 1, 0), self.longest_pause)
            say(
                f"Workers ended unexpectedly (status {status}) after {span(ran)}; "
                f"starting them again in {span(pause)}."
            )
            if self._stop.wait(pause):
                return 0

    def _run_once(self) -> int:
        child = subprocess.Popen(tied(self.command), env=self.environment, process_group=0)
        self._child = child
        if self._stop.is_set():
            # The order came while the child was being made.
            child.terminate()
        status = child.wait()
        self._child = None
        return status

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        child = self._child
        if self._stop.is_set():
            if child is not None:
                # Past Python's buffers, which this may have interrupted.
                text = "Already stopping: what is in hand is being finished. To cut it off: "
                os.write(2, f"{text}kill -9 {child.pid}\n".encode())
            return
        self._stop.set()
        if child is not None:
            child.terminate()
