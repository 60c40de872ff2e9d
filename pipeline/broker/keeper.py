"""The thread that keeps what a process has in hand.

One thread and one session for all queues of a process: it claims for the consumers, settles what
the workers have finished, lets the locks go afterwards, moves delayed messages that are due, looks
for messages of dead workers, and starts over on a new session when its own has gone. Consumers and
workers only leave it notes; none of them waits for Postgres.
"""

from __future__ import annotations

import logging
import os
import random
import select
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

import psycopg2

from pipeline.broker.claiming import Claimer
from pipeline.broker.hand import Hand, Held, Inbox, Settlement
from pipeline.broker.recovery import Recovery
from pipeline.broker.session import Session, TakenUp
from pipeline.broker.settling import Settler

logger = logging.getLogger(__name__)

#: Seconds to let settlements gather while workers still have something to do.
LINGER = 0.002

#: Seconds between two tries to reconnect, at first and at most.
RECONNECT_FIRST, RECONNECT_MOST = 0.05, 1.0

#: Seconds that a session must have lived for its loss to be an accident, which is mended at once.
SETTLED_AFTER = 5.0


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How often the keeper does what, in seconds.

    Attributes:
      listens: Whether it is also woken by NOTIFY.
      poll: Between two looks for messages that it was not told of.
      look: Between two looks for messages of dead workers; one is taken up after being seen twice.
    """

    listens: bool = True
    poll: float = 1.0
    look: float = 1.0


class Keeper:
    """Everything that one broker has in hand in one process.

    Parameters:
      open_session: Makes a session that listens on the given queues; raises psycopg2.Error.
      rhythm: How often to do what.
      takeup_limit: How often a message may be taken up from a dead worker before it is rejected.
      on_rejected: Told of each message that was rejected for that.
    """

    def __init__(
        self,
        open_session: Callable[[Iterable[str]], Session],
        *,
        rhythm: Rhythm,
        takeup_limit: int,
        on_rejected: Callable[[TakenUp], None],
    ) -> None:
        self._open_session = open_session
        self._rhythm = rhythm
        self._hand = Hand()
        self._settler = Settler(self._hand)
        self._claimer = Claimer(self._hand, self.settle)
        self._recovery = Recovery(
            self._hand, every=rhythm.look, limit=takeup_limit, on_rejected=on_rejected
        )
        self._session: Session | None = None
        self._poll_at = self._began_at = 0.0
        self._reconnect_after = RECONNECT_FIRST

        self._thread: threading.Thread | None = None
        self._has_session = threading.Event()
        self._is_stopping = threading.Event()
        self._flushed = threading.Condition(self._hand.lock)
        self._has_batch = threading.Event()
        self._wake_out, self._wake_in = os.pipe()
        os.set_blocking(self._wake_out, False)
        os.set_blocking(self._wake_in, False)
        self._is_awake = False
        self._is_abandoned = self._gave_up = False
        self._flush_count = 0
        self._turn_count = 0

    # What consumers and workers call, in threads of their own.

    def open_inbox(self, queue_name: str, prefetch: int, *, is_delay_queue: bool) -> Inbox:
        """Claim messages of a queue into a new inbox until it is closed."""
        with self._hand.lock:
            inbox = self._hand.open_inbox(queue_name, prefetch, is_delay_queue=is_delay_queue)
            self._is_stopping.clear()
            self._poll_at = 0.0
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="dramatiq-pg keeper", daemon=True
                )
                self._thread.start()
        self._wake()
        return inbox

    def close_inbox(self, inbox: Inbox, timeout: float) -> None:
        """Claim no more for it, put back what it still has, and wait until all is settled."""
        with self._hand.lock:
            inbox.is_open = False
        while not inbox.messages.empty():
            self.settle(inbox.messages.get(), "queued")
        self.flush(timeout)

    def abandon(self) -> None:
        """End the thread and its session, whatever is in hand: others will take it up."""
        self._is_stopping.set()
        self._is_abandoned = True
        self._wake()

    def get(self, message_id: str) -> Held | None:
        """What is in hand under this id."""
        return self._hand.held.get(message_id)

    def settle(self, held: Held, state: str, message: str | None = None) -> None:
        """Leave a note that a message shall become `done`, `rejected` or `queued`. Never waits."""
        if held.is_settling:
            return
        held.is_settling = True
        settlement = Settlement(held, state, message)
        if held.is_put_back:
            settlement = Settlement(held, "queued")
        elif held.resend is not None and state == "done":
            settlement = Settlement(held, "queued", *held.resend)
        self._settler.outgoing.append(settlement)
        if len(self._settler.outgoing) * 4 >= len(self._hand.held):
            self._has_batch.set()
        self._wake()

    def nudge(self, queue_name: str) -> None:
        """Say that something was put into a queue, where no notification will."""
        self._hand.has_news(queue_name)
        self._wake()

    def may_start(self, held: Held) -> bool:
        """Whether a worker may start a message now: not if its lock is known to be lost.

        Waits while there is no session, since nobody can tell then.
        """
        while not self._has_session.wait(0.2):
            if self._is_stopping.is_set():
                held.is_put_back = True
                return False
        return not held.is_lost

    def stopping(self) -> None:
        """Say that the worker is going to stop: whatever waits for a session gives up."""
        self._is_stopping.set()

    def flush(self, timeout: float) -> bool:
        """Wait until every note has been settled; False if they weren't in time.

        What the thread is just claiming counts: it goes back if its inbox has been closed. Once a
        wait was in vain, others are short until there is a session again.
        """
        if self._gave_up:
            timeout = min(timeout, 0.5)
        with self._flushed:
            self._flush_count += 1
            # The turn that the thread is at may not have seen the newest notes, the next one has.
            turn = self._turn_count + 2
        self._has_batch.set()
        self._wake()
        with self._flushed:
            done = self._flushed.wait_for(
                lambda: (
                    self._thread is None
                    or (self._settler.pending_count() == 0 and self._turn_count >= turn)
                ),
                timeout,
            )
            self._flush_count -= 1
        if not done:
            self._gave_up = True
            logger.warning(
                "%d finished messages could not be settled within %g s: they will run again",
                self._settler.pending_count(),
                timeout,
            )
        return done

    def _wake(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            with suppress(BlockingIOError):
                os.write(self._wake_in, b"!")

    # What the thread does.

    def _run(self) -> None:
        while not self._is_abandoned:
            try:
                self._cycle(self._session or self._begin_session())
            except (psycopg2.Error, OSError) as error:
                self._lose_session(error)
            except Exception as error:
                logger.critical("unexpected error in the keeper's thread", exc_info=True)
                self._lose_session(error)
            with self._flushed:
                self._turn_count += 1
                if self._flush_count:
                    self._flushed.notify_all()
                elif self._settler.pending_count() == 0 and self._hand.is_idle():
                    self._end_session()
                    self._thread = None
                    return
        with self._flushed:
            self._end_session()
            self._thread = None
            self._flushed.notify_all()

    def _cycle(self, session: Session) -> None:
        self._tell(session, self._settler.settle(session))
        now = time.monotonic()
        if now >= self._poll_at:
            self._poll_at = now + self._rhythm.poll * random.uniform(0.75, 1.0)
            self._claimer.look_everywhere()
        if self._rhythm.listens:
            for inbox in self._hand.open_inboxes():
                session.listen(inbox.queue_name)
        self._tell(session, self._claimer.promote(session))
        self._claimer.claim(session)
        self._tell(session, self._recovery.look(session))
        self._wait(session)

    def _tell(self, session: Session, messages: list[tuple[str, str]]) -> None:
        """Let this process and the others know of messages that can be had."""
        for queue_name, _ in messages:
            self._hand.has_news(queue_name)
        if messages and self._rhythm.listens:
            session.notify(messages)

    def _begin_session(self) -> Session:
        session = self._open_session(
            [i.queue_name for i in self._hand.open_inboxes()] if self._rhythm.listens else []
        )
        try:
            self._settler.reclaim(session)
        except BaseException:
            session.close()
            raise
        self._session = session
        self._poll_at = 0.0
        self._claimer.restart()
        self._recovery.restart()
        self._began_at = time.monotonic()
        self._gave_up = False
        self._has_session.set()
        return session

    def _lose_session(self, error: BaseException) -> None:
        if self._session is not None and time.monotonic() - self._began_at > SETTLED_AFTER:
            self._reconnect_after = RECONNECT_FIRST
        if self._session is None:
            is_first = self._reconnect_after == RECONNECT_FIRST
            level = logging.WARNING if is_first else logging.INFO
            logger.log(level, "can't reach Postgres, trying again: %s", str(error).strip())
        else:
            self._end_session()
            logger.warning(
                "lost the consumers' session, with %d messages in hand; reconnecting: %s",
                len(self._hand.held),
                str(error).strip(),
            )
        time.sleep(self._reconnect_after * random.uniform(0.5, 1.0))
        self._reconnect_after = min(self._reconnect_after * 2, RECONNECT_MOST)

    def _end_session(self) -> None:
        self._has_session.clear()
        if self._session is not None:
            self._session.close()
            self._session = None

    def _wait(self, session: Session) -> None:
        """Sleep until a note, a notification, or the next thing to do."""
        outgoing = self._settler.outgoing
        if self._flush_count:
            return
        if outgoing:
            # While workers have enough to do, a few more of them finish in a moment.
            if len(self._hand.held) > 2 * self._settler.pending_count():
                self._has_batch.clear()
                self._has_batch.wait(LINGER)
            return
        until = min(
            self._poll_at,
            self._recovery.look_at,
            self._claimer.promote_at,
            self._claimer.claim_at(),
            self._settler.retry_at if self._settler.is_waiting() else float("inf"),
        )
        self._is_awake = False
        if not outgoing and not session.connection.notifies:
            poller = select.poll()
            poller.register(self._wake_out, select.POLLIN)
            poller.register(session.connection.fileno(), select.POLLIN)
            poller.poll(max(0.0, until - time.monotonic()) * 1000)
        self._is_awake = True
        with suppress(BlockingIOError):
            os.read(self._wake_out, 4096)
        for queue_name in session.notified_queues():
            self._hand.has_news(queue_name)
