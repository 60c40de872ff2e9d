"""A lane: one sender's place and session, and the delivery that it has in hand.

free  ->  begun  ->  talking  ->  asking  ->  talking  ->  ended  ->  free
                                 (the dot?)

free  ->  talking  ->  gone
          (QUIT)
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto

from .delivery import Claimed
from .reading import Closing
from .smtp import BeforeDot, Dialogue, Result, Session, Wait


@dataclass(frozen=True, slots=True)
class Place:
    """A sender's place, and `boot_clock` before it was taken."""

    slot: int
    token: str
    taken_at: float


class Phase(Enum):
    """What a lane does with what it has in hand."""

    FREE = auto()
    #: Its attempt has begun, and nothing else was done.
    BEGUN = auto()
    #: It waits for the server.
    TALKING = auto()
    #: All but the dot has been sent.
    ASKING = auto()
    #: It is known how the attempt ended.
    ENDED = auto()
    #: It has no connection and gets no other.
    GONE = auto()


class Lane:
    """One sender's.

    Parameters:
      worker: Who writes its attempts.
      message_id: The doorbell that it answers.

    Attributes:
      rest: How long its place rests afterwards.
      is_over: Nothing more is begun in it.
      in_window: The dot of what it has in hand was sent, or may have been.
      since: When it began to wait for the server, as of `time.monotonic()`.
      starts_at: What it has in hand is not started before this time, as of `time.monotonic()`.
      is_reading: What it has in hand is being read beside.
      owed: What could not be written.
      error: Why it was given up.
      done: Set when nobody else touches it any more.
    """

    def __init__(
        self, place: Place, session: Session, *, worker: str, message_id: str | None
    ) -> None:
        self.place = place
        self.session = session
        self.worker = worker
        self.message_id = message_id
        self.outcomes: Counter[str] = Counter()
        self.rest = timedelta(0)
        self.is_over = False
        self.phase = Phase.FREE
        self.in_window = False
        self.since = 0.0
        self.starts_at = 0.0
        self.is_reading = False
        self.owed: tuple[Claimed, Result] | None = None
        self.error: Exception | None = None
        self.done = threading.Event()
        self._claimed: Claimed | None = None
        self._dialogue: Dialogue[Result | Closing] | Dialogue[None] | None = None
        self._wait: Wait | None = None
        self._result: Result | Closing | None = None

    @property
    def is_busy(self) -> bool:
        """Whether it has something in hand."""
        return self._claimed is not None

    @property
    def claimed(self) -> Claimed:
        """What it has in hand."""
        assert self._claimed is not None
        return self._claimed

    @property
    def wait(self) -> Wait:
        """What it waits for, while talking."""
        assert self._wait is not None
        return self._wait

    @property
    def result(self) -> Result | Closing:
        """How the attempt ended, when it has."""
        assert self._result is not None
        return self._result

    def take(self, claimed: Claimed, *, starts_at: float) -> None:
        """Take a delivery in hand whose attempt has begun."""
        self._claimed = claimed
        self.starts_at = starts_at
        self.is_reading = False
        self.phase = Phase.BEGUN

    def start(self, dialogue: Dialogue[Result | Closing]) -> None:
        """Carry the attempt on as far as it goes without waiting."""
        self._dialogue = dialogue
        self._go_on(None)

    def part(self) -> None:
        """Take leave of the server: nothing more is begun."""
        self.is_over = True
        self._dialogue = self.session.goodbye()
        self._go_on(None)

    def answer(self, answer: bool) -> None:
        """Tell the attempt whether what it waited for has come, or whether the dot may be sent."""
        self.in_window = self.in_window or (answer and self.phase is Phase.ASKING)
        self._go_on(answer)

    def throw(self, error: Exception) -> None:
        """Tell the attempt that it can't be gone on with."""
        self._go_on(error)

    def _go_on(self, told: bool | Exception | None) -> None:
        assert self._dialogue is not None
        try:
            wanted = (
                self._dialogue.throw(told)
                if isinstance(told, Exception)
                else self._dialogue.send(told)
            )
        except StopIteration as over:
            if over.value is None:
                self._dialogue, self._wait = None, None
                self.phase = Phase.GONE
            else:
                self.end(over.value)
            return
        if isinstance(wanted, BeforeDot):
            self.phase = Phase.ASKING
        else:
            self.phase = Phase.TALKING
            self.since = time.monotonic()
            self._wait = wanted

    def end(self, result: Result | Closing) -> None:
        """The attempt is over."""
        self._dialogue, self._wait = None, None
        self._result = result
        self.phase = Phase.ENDED

    def let_go(self) -> None:
        """Have nothing in hand: its outcome is written, or will be by somebody else."""
        if self._dialogue is not None:
            # It is not at its end: the session drops its connection.
            self._dialogue.close()
        self._claimed, self._dialogue, self._wait, self._result = None, None, None, None
        self.in_window = False
        self.phase = Phase.FREE
