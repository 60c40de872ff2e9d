"""What servers say to the lanes of a turn, and how long it is waited for."""

from __future__ import annotations

import math
import os
import select
import time
from collections.abc import Sequence
from contextlib import suppress

from .lane import Lane, Phase

#: A server that answers within so many seconds is waited for.
LINGER = 0.003

#: Whoever waits looks up after so many seconds: the worker may be being stopped.
LOOK_UP = 0.5


class Listener:
    """Waits for servers, on behalf of one thread. Another one may wake it."""

    def __init__(self) -> None:
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waker, False)
        #: How long servers take to reply to a dot, in seconds, on the whole.
        self._reply_time = 0.0

    def wake(self) -> None:
        """Have it look up."""
        with suppress(BlockingIOError):
            os.write(self._waker, b"!")

    def close(self) -> None:
        """Give back what it has of the system."""
        os.close(self._woken)
        os.close(self._waker)

    def listen(self, lanes: Sequence[Lane], *, is_urged: bool = False) -> bool:
        """Wait as long as there is nothing better to do, and tell lanes what came.

        Parameters:
          is_urged: There is: don't wait.

        Returns:
          Whether a server had something to say, or took too long.
        """
        talking = [lane for lane in lanes if lane.phase is Phase.TALKING]
        ready = self._ready(talking, 0.0 if is_urged else self._patience(lanes, talking))
        now = time.monotonic()
        for lane in talking:
            came = lane in ready
            if came or lane.wait.deadline <= now:
                if lane.in_window:
                    self._reply_time += (now - lane.since - self._reply_time) / 8
                lane.answer(came)
                ready.add(lane)
        return bool(ready)

    def _patience(self, lanes: Sequence[Lane], talking: Sequence[Lane]) -> float:
        """How long it is waited for servers, in seconds."""
        now = time.monotonic()
        linger = LINGER if self._reply_time < LINGER else 0.0
        due = [lane.since + linger - now for lane in talking]
        window = [left for lane, left in zip(talking, due, strict=True) if lane.in_window]
        if any(left > 0 for left in window):
            return max(window)
        phases = {lane.phase for lane in lanes}
        starts = [
            lane.starts_at for lane in lanes if lane.phase is Phase.BEGUN and not lane.is_reading
        ]
        if Phase.ENDED in phases or any(start <= now for start in starts):
            return 0.0
        if Phase.ASKING in phases:
            return max([0.0, *due])
        ends = [lane.wait.deadline for lane in talking]
        return max(min([now + LOOK_UP, *ends, *starts]) - now, 0.0)

    def _ready(self, talking: Sequence[Lane], timeout: float) -> set[Lane]:
        """The lanes whose sockets have what they wait for, within so many seconds."""
        waiting = select.poll()
        waiting.register(self._woken, select.POLLIN)
        by_number: dict[int, Lane] = {}
        ready: set[Lane] = set()
        for lane in talking:
            wait = lane.wait
            if wait.socket is None:
                continue
            number = wait.socket.fileno()
            if number < 0:
                # Closed meanwhile: its lane will find out.
                ready.add(lane)
            else:
                by_number[number] = lane
                waiting.register(number, wait.events)
        # In whole milliseconds, rounded up: else the last one would be spent on asking in vain.
        for number, _ in waiting.poll(0 if ready else math.ceil(timeout * 1000)):
            if number in by_number:
                ready.add(by_number[number])
            else:
                os.read(self._woken, 64)
        return ready
