"""Talk that can wait: one thread carries on a dialogue with each of several servers.

A dialogue is a generator. Where a call would block it yields what it waits for, and is told whether
that came before the deadline. `run` carries on one by itself; whoever has several asks `select`.
"""

from __future__ import annotations

import math
import select
import socket
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

__all__ = ["BeforeDot", "Dialogue", "Wait", "run", "wait_for"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wait:
    """Until a socket can be read or written, or for a while.

    Attributes:
      socket: None to wait for the deadline only.
      events: `select.POLLIN` or `select.POLLOUT`.
      deadline: As of `time.monotonic()`.
    """

    socket: socket.socket | None
    events: int
    deadline: float


class BeforeDot:
    """All but the final dot has been sent: may it be?"""


#: What a dialogue yields, what it is told, and what it comes to.
Dialogue: TypeAlias = Generator[Wait | BeforeDot, bool | None, T]


def run(dialogue: Dialogue[T], before_dot: Callable[[], bool] | None = None) -> T:
    """Carry on one dialogue to its end.

    Parameters:
      before_dot: Answers its question, if it has one.

    Raises:
      Exception: What the dialogue raises, or `before_dot`, which the dialogue is told first.
    """
    answer = None
    while True:
        try:
            wanted = dialogue.send(answer)
        except StopIteration as over:
            value: T = over.value
            return value
        try:
            if isinstance(wanted, Wait):
                answer = wait_for(wanted)
            else:
                answer = before_dot is not None and before_dot()
        except BaseException as error:
            dialogue.throw(error)
            raise


def wait_for(wanted: Wait) -> bool:
    """Whether it came before the deadline."""
    left = max(wanted.deadline - time.monotonic(), 0.0)
    if wanted.socket is None:
        time.sleep(left)
        return False
    ready = select.poll()
    try:
        ready.register(wanted.socket, wanted.events)
    except ValueError:
        # Closed meanwhile: whoever uses it next will be told so.
        return True
    # Rounded up: a deadline that is asked about a moment too early would be waited for again.
    return bool(ready.poll(math.ceil(left * 1000)))
