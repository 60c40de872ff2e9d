"""A sender: what a worker is while it answers a doorbell.

For a slice of time it claims waiting deliveries, a chunk at a time, and hands them to the relay one
by one over a kept session. The transaction that settles one delivery begins the next attempt.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta

import psycopg2

from . import delivery
from .attempting import attempt
from .database import Connection, Cursor, boot_clock, connect, query, transaction
from .delivery import Claimed
from .doorbells import Doorbells
from .lease import PLACE_LEASE, Keeper
from .prepared import Prepared
from .reading import Ahead, Closing
from .relay_state import RelayState
from .replies import Outcome, Scope, Stage
from .settings import Settings
from .settling import settle_at_once, write_outcome, write_outcome_patiently
from .smtp import Relay, Result, Session, Timeouts

#: A place that the relay refused a connection for, while others have theirs, rests this long.
REST = timedelta(seconds=30)


def worker_name() -> str:
    """Who writes an attempt: `host:process id:thread id`."""
    return f"{socket.gethostname()}:{os.getpid()}:{threading.get_native_id()}"


#: Outcomes after which the delivery waits again, or something is said about the relay.
_NOT_FINAL = (Outcome.DEFERRED, Outcome.ABANDONED, Outcome.UNCERTAIN)


class _NothingToDoError(Exception):
    """Rolls the transaction of a claim back."""


@dataclass(frozen=True, slots=True)
class Place:
    """A sender's place, and `boot_clock` before it was taken."""

    slot: int
    token: str
    taken_at: float


class Sender:
    """Answers doorbells.

    Parameters:
      url: The database.
      settings: Limits, timeouts, policy.
      doorbells: To ring again when there is more to do.
      should_stop: Asked between two mails.
    """

    def __init__(
        self,
        url: str,
        settings: Settings,
        doorbells: Doorbells,
        *,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.url = url
        self.settings = settings
        self.doorbells = doorbells
        self.should_stop = should_stop

    def answer(self, message_id: str | None = None) -> dict[str, int]:
        """Send until nothing waits, the slice is over, or the worker is being stopped.

        Parameters:
          message_id: The doorbell's Dramatiq message.

        Returns:
          How many attempts ended with which outcome; `suppressed` and `skipped` are among them.

        Raises:
          psycopg2.Error: When the database is away. What was in hand is recovered later.
        """
        with closing(connect(self.url, application_name="pipeline sender")) as connection:
            place = self._take_place(connection, message_id)
            if place is None:
                return {}
            turn = _Turn(self, connection, place)
            turn.work()
            with transaction(connection, walks=True) as cursor:
                if turn.rest:
                    cursor.execute(query("doorbells_lock"))
                cursor.execute(
                    query("sender_leave"),
                    {"slot": place.slot, "token": place.token, "rest": turn.rest},
                )
                self.doorbells.over(cursor, message_id)
                turn.leave_relay(cursor)
                self.doorbells.ring_senders(cursor, turn.relay.useful_senders(cursor))
            return dict(turn.outcomes)

    def _take_place(self, connection: Connection, message_id: str | None) -> Place | None:
        taken_at = boot_clock()
        with transaction(connection) as cursor:
            self.doorbells.answer(cursor, message_id)
            cursor.execute(query("sender_slots"), {"senders": self.settings.senders})
            cursor.execute(
                query("sender_enter"),
                {
                    "worker": worker_name(),
                    "senders": self.settings.senders,
                    "lease": min(self.settings.lease, PLACE_LEASE),
                },
            )
            row = cursor.fetchone()
            if row is None:
                self.doorbells.over(cursor, message_id)
                return None
        return Place(row[0], row[1], taken_at)


class _Turn:
    """One slice of time in one place."""

    def __init__(self, sender: Sender, connection: Connection, place: Place) -> None:
        self.url = sender.url
        self.settings = sender.settings
        self.should_stop = sender.should_stop
        self.connection = connection
        self.prepared = Prepared(connection)
        self._ahead = Ahead(connection)
        self.place = place
        self.worker = worker_name()
        self.relay = RelayState.of(self.settings)
        self.outcomes: Counter[str] = Counter()
        #: How long the place rests afterwards.
        self.rest = timedelta(0)
        self._is_probe = False
        self._over = False
        self._ends_at = place.taken_at + self.settings.slice.total_seconds()
        self._keeper = Keeper(
            self.url,
            slot=place.slot,
            token=place.token,
            lease=self.settings.lease,
            taken_at=place.taken_at,
        )

    def work(self) -> None:
        """Claim and send, chunk after chunk."""
        session = self._session()
        self._keeper.start()
        try:
            while self._goes_on():
                chunk = self._claim()
                if not chunk:
                    break
                self._send_chunk(session, chunk)
        finally:
            self._keeper.stop()
            session.close()

    def leave_relay(self, cursor: Cursor) -> None:
        """If the relay was to be tried and was not, somebody else may try it."""
        if self._is_probe:
            self.relay.stay_on_trial(cursor)

    def _session(self) -> Session:
        settings = self.settings
        return Session(
            Relay.from_url(settings.smtp_url),
            timeouts=Timeouts(
                connect=settings.connect_timeout.total_seconds(),
                command=settings.command_timeout.total_seconds(),
                data=settings.data_timeout.total_seconds(),
                reply=settings.reply_timeout.total_seconds(),
            ),
            local_hostname=settings.domain,
            messages_per_session=settings.session_limit,
        )

    def _goes_on(self) -> bool:
        return not (
            self._over
            or self.should_stop()
            or boot_clock() >= self._ends_at
            or not self._keeper.has_place
        )

    def _claim(self) -> list[Claimed]:
        """The next chunk, its first attempt begun; one delivery while the relay is on trial."""
        try:
            with transaction(self.connection, walks=True) as cursor:
                entry = "probe" if self._is_probe else self.relay.enter(cursor)
                limit = {"open": self.settings.chunk, "probe": 1, "wait": 0}[entry]
                chunk = delivery.claim(cursor, limit=limit, lease=self.settings.lease)
                if not chunk:
                    # Nothing to try the relay with: the trial is for whoever comes next.
                    raise _NothingToDoError
                self._begin(cursor, chunk[0])
        except _NothingToDoError:
            return []
        self._is_probe = entry == "probe"
        for claimed in chunk:
            self._keeper.hold(claimed.id, claimed.token)
        return chunk

    def _begin(self, cursor: Cursor, claimed: Claimed) -> bool:
        return delivery.begin(cursor, claimed, worker=self.worker, lease=self.settings.lease)

    def _begin_following(self, cursor: Cursor, following: Claimed | None) -> bool:
        self._over = not self._goes_on()
        return not self._over and following is not None and self._begin(cursor, following)

    def _send_chunk(self, session: Session, chunk: Sequence[Claimed]) -> None:
        begun = True
        self._ahead.begin([claimed.subject for claimed in chunk])
        for index, claimed in enumerate(chunk):
            rest = chunk[index + 1 :]
            following = rest[0] if rest else None
            if begun:
                begun = self._send_one(session, claimed, following)
            else:
                # It was taken over since the claim: leave it alone.
                with transaction(self.connection) as cursor:
                    begun = self._begin_following(cursor, following)
            self._keeper.drop(claimed.id)
            if self._over:
                for unbegun in rest:
                    delivery.release(self.connection, unbegun)
                    self._keeper.drop(unbegun.id)
                break

    def _send_one(self, session: Session, claimed: Claimed, following: Claimed | None) -> bool:
        """One attempt, and in the transaction that settles it the beginning of the next one.

        Returns:
          Whether the next one has begun and is ours.
        """
        self._await_slot()
        result = attempt(self.prepared, self.settings, session, self._ahead, claimed)
        try:
            begun = self._settle(claimed, result, following)
        except psycopg2.Error:
            if isinstance(result, Result):
                write_outcome_patiently(self.url, self.settings, claimed, result)
            raise
        self.outcomes[result.state if isinstance(result, Closing) else result.outcome.value] += 1
        return begun

    def _await_slot(self) -> None:
        """Wait until the relay may be sent the next message, if there is a limit.

        No transaction is open meanwhile, and the keeper renews the lease.
        """
        if self.settings.relay_rate is not None:
            with transaction(self.connection) as cursor:
                wait = self.relay.slot(cursor)
            time.sleep(wait)

    def _settle(
        self, claimed: Claimed, result: Result | Closing, following: Claimed | None
    ) -> bool:
        if isinstance(result, Closing):
            settling = delivery.closing(claimed, state=result.state, reason=result.reason)
        elif self._is_probe or result.outcome in _NOT_FINAL:
            # The relay's state changes, or the delivery finds its place among those that wait.
            with transaction(self.connection) as cursor:
                pause = self._judge_relay(cursor, result)
                write_outcome(cursor, self.settings, claimed, result, relay_pause=pause)
                return self._begin_following(cursor, following)
        else:
            settling = settle_at_once(self.settings, claimed, result)
        self._over = not self._goes_on()
        if self._over or following is None:
            self.prepared.run(settling)
            return False
        beginning = delivery.beginning(following, worker=self.worker, lease=self.settings.lease)
        return bool(self.prepared.run(settling, beginning))

    def _judge_relay(self, cursor: Cursor, result: Result) -> timedelta:
        """What the result says about the relay.

        Returns:
          How long it is left alone, if it is in trouble.
        """
        pause = self.settings.relay_pause
        if result.outcome is Outcome.UNCERTAIN:
            # A relay that loses its replies would make everything uncertain that it is given: from
            # now on it gets one mail at a time, and longer and longer pauses, until it answers.
            self._over = True
            self.relay.trouble(cursor, result, is_probe=self._is_probe)
            self._is_probe = False
        elif result.outcome is Outcome.DEFERRED and result.scope is Scope.RELAY:
            self._over = True
            if result.stage is Stage.CONNECT and result.smtp_code == 421 and self._others(cursor):
                # It has enough connections: this place rests, the others go on.
                self.rest = REST
            else:
                pause = self.relay.trouble(cursor, result, is_probe=self._is_probe)
                self._is_probe = False
        elif self._is_probe and result.stage is not Stage.PREPARE:
            self.relay.well(cursor)
            self._is_probe = False
        return pause

    def _others(self, cursor: Cursor) -> bool:
        cursor.execute(query("sender_others"), {"token": self.place.token})
        row = cursor.fetchone()
        return row is not None and bool(row[0])
