"""What a process has in hand, as plain data."""

from __future__ import annotations

import json
import queue
import threading
from dataclasses import dataclass, field
from typing import Any

from dramatiq.broker import MessageProxy

#: Where a claim starts to look in a queue: before its oldest message. As mtime and id.
FROM_THE_START = ("-infinity", "00000000-0000-0000-0000-000000000000")


@dataclass(slots=True, eq=False)
class Held:
    """A message between its claim and its settlement.

    Attributes:
      proxy: What the worker has of it; its message is None if the row couldn't be read.
      options: The message's options as they were claimed.
      is_lost: Its lock went with a session, and somebody else has taken it up.
      is_settling: An ack, nack or requeue has been asked for.
      is_put_back: It was not run after all: whatever is asked for, it goes back to the queue.
      resend: A retry of itself, which its ack will write: message, queue and delay.
    """

    message_id: str
    queue_name: str
    lock_key: int
    token: int
    proxy: MessageProxy
    options: dict[str, Any]
    is_lost: bool = False
    is_settling: bool = False
    is_put_back: bool = False
    resend: tuple[str, str, float | None] | None = None

    @property
    def is_suspect(self) -> bool:
        """Whether a worker died before while it had this message."""
        return "takeup" in self.options


@dataclass(slots=True, eq=False)
class Settlement:
    """What a message in hand shall become.

    Attributes:
      state: `done`, `rejected` or `queued`.
      message: Its new text, None to leave it; `new_queue` likewise.
      delay: Milliseconds from now to its eta, None for none.
    """

    held: Held
    state: str
    message: str | None = None
    new_queue: str | None = None
    delay: float | None = None

    def as_item(self) -> str:
        """As `settle.sql` wants it: one element of the JSON array."""
        fields = json.dumps(
            {
                "id": self.held.message_id,
                "queue": self.held.queue_name,
                "state": self.state,
                "new_queue": self.new_queue,
                "delay": self.delay,
            }
        )
        return f'{fields[:-1]}, "message": {self.message or "null"}}}'


@dataclass(slots=True, eq=False)
class Inbox:
    """Messages of one queue on their way from the session to dramatiq's consumer thread.

    Attributes:
      prefetch: The most messages of this queue that may be in hand.
      held_count: How many are.
      has_more: There may be messages to claim.
      is_drained: The last claim got fewer than it asked for.
      since: The last message that was come across while a backlog is drained.
      not_before: When to claim again at the earliest (monotonic): claims that found nothing, since
        other processes were told of the same messages, are followed by a short random pause.
    """

    queue_name: str
    prefetch: int
    is_delay_queue: bool
    messages: queue.SimpleQueue[Held] = field(default_factory=queue.SimpleQueue)
    is_open: bool = True
    held_count: int = 0
    has_more: bool = True
    is_drained: bool = True
    since: tuple[str, str] = FROM_THE_START
    not_before: float = 0.0
    empty_claim_count: int = 0

    def free(self) -> int:
        """How many more messages may be claimed."""
        return self.prefetch - self.held_count if self.is_open else 0

    def look_again(self) -> None:
        """Have the next claim look at the whole queue."""
        self.has_more, self.is_drained, self.not_before = True, True, 0.0


class Hand:
    """The messages and inboxes of a process. Only the keeper's thread takes in and lets go."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.held: dict[str, Held] = {}
        self._inboxes: dict[str, Inbox] = {}
        #: Set when a delay queue has news.
        self.has_new_delays = False

    def open_inbox(self, queue_name: str, prefetch: int, *, is_delay_queue: bool) -> Inbox:
        """A new inbox for a queue, in place of the one before. To be called with the lock held."""
        inbox = Inbox(queue_name, max(prefetch, 1), is_delay_queue)
        before = self._inboxes.get(queue_name)
        if before is not None:
            before.is_open = False
            inbox.held_count = before.held_count
        self._inboxes[queue_name] = inbox
        return inbox

    def open_inboxes(self) -> list[Inbox]:
        """Those that messages are wanted for."""
        with self.lock:
            return [inbox for inbox in self._inboxes.values() if inbox.is_open]

    def is_idle(self) -> bool:
        """Nothing in hand and nothing wanted. To be called with the lock held."""
        return not self.held and not any(inbox.is_open for inbox in self._inboxes.values())

    def take_in(self, inbox: Inbox, held: Held) -> None:
        """Have a message in hand from now on."""
        self.held[held.message_id] = held
        inbox.held_count += 1

    def hand_over(self, inbox: Inbox, held: Held) -> bool:
        """Put a message into an inbox, if that is still open."""
        with self.lock:
            if inbox.is_open:
                inbox.messages.put(held)
            return inbox.is_open

    def let_go(self, held: Held) -> None:
        """Have it no longer."""
        if self.held.pop(held.message_id, None) is not None:
            inbox = self._inboxes.get(held.queue_name)
            if inbox is not None:
                inbox.held_count -= 1

    def has_news(self, queue_name: str) -> None:
        """Note that something was put into a queue."""
        inbox = self._inboxes.get(queue_name)
        if inbox is None:
            return
        if inbox.is_delay_queue:
            self.has_new_delays = True
        else:
            inbox.has_more = True
