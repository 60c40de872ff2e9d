"""A sender: what a worker is while it answers a doorbell.

For a slice of time it claims waiting deliveries, a chunk at a time, and hands them to the relay one
by one over a kept session. No transaction is open while it talks to the relay. What it promises is
in the order of its steps:

    claim and begin (counted) | read, render | MAIL RCPT DATA content | marker | dot | reply | settle

Whatever happens before the marker has committed, the mail was not sent and the delivery is tried
again. After it, only the server's reply tells, and a sender that can't be asked leaves `uncertain`.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import psycopg2
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor

from . import delivery
from .database import boot_clock, connect, query, transaction
from .delivery import Claimed
from .doorbells import Doorbells
from .lease import PLACE_LEASE, Keeper
from .preparing import Closing, prepare
from .relay_state import RelayState
from .rendering import InvalidAddress
from .replies import Outcome, Scope, Stage, storable
from .settings import Settings
from .settlement import settlement_for
from .smtp import Relay, Result, Session, Timeouts

logger = logging.getLogger(__name__)

#: A place that the relay refused a connection for, while others have theirs, rests this long.
REST = timedelta(seconds=30)

#: An outcome that can't be written, because the database is away, is tried again for this long.
SETTLE_PATIENCE = timedelta(minutes=5)


def worker_name() -> str:
    """Who writes an attempt: `host:process id:thread id`."""
    return f"{socket.gethostname()}:{os.getpid()}:{threading.get_native_id()}"


@dataclass(frozen=True, slots=True)
class Place:
    """A sender's place, and `boot_clock` before it was taken."""

    slot: int
    token: str
    taken_at: float


class _NothingToDo(Exception):
    """Rolls the transaction of a claim back."""


class Sender:
    """Answers one doorbell.

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
        self.worker = worker_name()
        self.relay = RelayState.of(settings)
        self.outcomes: dict[str, int] = {}
        self._rest = timedelta(0)
        self._over = False
        self._is_probe = False
        self._ends_at = 0.0

    def answer(self, message_id: str | None = None) -> dict[str, int]:
        """Send until nothing waits, the slice is over, or the worker is being stopped.

        Parameters:
          message_id: The doorbell's Dramatiq message.

        Returns:
          How many attempts ended with which outcome; `suppressed` and `skipped` are among them.

        Raises:
          psycopg2.Error: When the database is away. What was in hand is recovered later.
        """
        self._ends_at = boot_clock() + self.settings.slice.total_seconds()
        self._connection = connect(self.url, application_name="pipeline sender")
        try:
            place = self._take_place(message_id)
            if place is not None:
                self._work(place)
                self._leave(place, message_id)
        finally:
            self._connection.close()
        return self.outcomes

    def _take_place(self, message_id: str | None) -> Place | None:
        taken_at = boot_clock()
        with transaction(self._connection) as cursor:
            self.doorbells.answer(cursor, message_id)
            cursor.execute(query("sender_slots"), {"senders": self.settings.senders})
            cursor.execute(
                query("sender_enter"),
                {
                    "worker": self.worker,
                    "senders": self.settings.senders,
                    "lease": min(self.settings.lease, PLACE_LEASE),
                },
            )
            row = cursor.fetchone()
            if row is None:
                self.doorbells.over(cursor, message_id)
                return None
        return Place(row[0], row[1], taken_at)

    def _leave(self, place: Place, message_id: str | None) -> None:
        with transaction(self._connection) as cursor:
            cursor.execute(
                query("sender_leave"),
                {"slot": place.slot, "token": place.token, "rest": self._rest},
            )
            self.doorbells.over(cursor, message_id)
            if self._is_probe:
                self.relay.stay_on_trial(cursor)
            self.doorbells.ring_senders(cursor, self.relay.useful_senders(cursor))

    def _work(self, place: Place) -> None:
        settings = self.settings
        session = Session(
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
        self._keeper = Keeper(
            self.url,
            slot=place.slot,
            token=place.token,
            lease=settings.lease,
            taken_at=place.taken_at,
        )
        self._place = place
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
            with transaction(self._connection) as cursor:
                entry = "probe" if self._is_probe else self.relay.enter(cursor)
                limit = {"open": self.settings.chunk, "probe": 1, "wait": 0}[entry]
                chunk = limit and delivery.claim(cursor, limit=limit, lease=self.settings.lease)
                if not chunk:
                    # Nothing to try the relay with: the trial is for whoever comes next.
                    raise _NothingToDo
                self._begin(cursor, chunk[0])
        except _NothingToDo:
            return []
        self._is_probe = entry == "probe"
        for claimed in chunk:
            self._keeper.hold(claimed.id, claimed.token)
        return chunk

    def _begin(self, cursor: Cursor, claimed: Claimed) -> bool:
        return delivery.begin(cursor, claimed, worker=self.worker, lease=self.settings.lease)

    def _send_chunk(self, session: Session, chunk: Sequence[Claimed]) -> None:
        begun = True
        for index, claimed in enumerate(chunk):
            rest = chunk[index + 1 :]
            following = rest[0] if rest else None
            if begun:
                begun = self._send_one(session, claimed, following)
            else:
                # It was taken over since the claim: leave it alone.
                with transaction(self._connection) as cursor:
                    begun = self._begin_following(cursor, following)
            self._keeper.drop(claimed.id)
            if self._over:
                for unbegun in rest:
                    delivery.release(self._connection, unbegun)
                    self._keeper.drop(unbegun.id)
                break

    def _send_one(self, session: Session, claimed: Claimed, following: Claimed | None) -> bool:
        """One attempt, and in the transaction that settles it the beginning of the next one.

        Returns:
          Whether the next one has begun and is ours.
        """
        try:
            mail = prepare(
                self._connection,
                self.settings,
                delivery_id=claimed.id,
                receiver_id=claimed.receiver_id,
                entity_name=claimed.entity_name,
                entity_identifier=claimed.entity_identifier,
                message_id=claimed.message_id,
                notification_count=claimed.notification_count,
            )
            if isinstance(mail, Closing):
                return self._close(claimed, mail, following)
            result = session.send(
                mail.envelope_from,
                mail.envelope_to,
                mail.content,
                lambda: self._mark(claimed),
            )
        except InvalidAddress as error:
            result = _prepared(Outcome.FAILED, storable(str(error)))
        except Exception as error:
            if self._connection.closed:
                # Known not to be sent: the dot never goes out unless the marker's commit returned.
                result = _prepared(Outcome.ABANDONED, storable(f"database away: {error}"))
                self._settle_patiently(claimed, result)
                raise
            logger.exception("Delivery %s could not be prepared.", claimed.id)
            result = _prepared(
                Outcome.DEFERRED, storable(f"{type(error).__name__}: {error}")
            )
        return self._settle(session, claimed, result, following)

    def _mark(self, claimed: Claimed) -> bool:
        before = boot_clock()
        with transaction(self._connection) as cursor:
            marked = delivery.mark_transmitting(cursor, claimed, lease=self.settings.lease)
        # The commit may have been slow, or this process frozen: the dot must not go out when
        # somebody may have declared this attempt lost.
        return marked and boot_clock() - before < self.settings.lease.total_seconds() * 0.8

    def _close(self, claimed: Claimed, closing: Closing, following: Claimed | None) -> bool:
        self._count(closing.state)
        with transaction(self._connection) as cursor:
            delivery.close(cursor, claimed, state=closing.state, reason=closing.reason)
            return self._begin_following(cursor, following)

    def _begin_following(self, cursor: Cursor, following: Claimed | None) -> bool:
        self._over = not self._goes_on()
        return not self._over and following is not None and self._begin(cursor, following)

    def _settle(
        self,
        session: Session,
        claimed: Claimed,
        result: Result,
        following: Claimed | None,
    ) -> bool:
        try:
            with transaction(self._connection) as cursor:
                self._write(cursor, claimed, result)
                begun = self._begin_following(cursor, following)
        except psycopg2.Error as error:
            logger.warning(
                "The outcome of delivery %s (%s) could not be written, trying again: %s",
                claimed.id,
                result.outcome,
                error,
            )
            self._settle_patiently(claimed, result)
            raise
        self._count(result.outcome.value)
        if self._over:
            session.close()
        return begun

    def _write(self, cursor: Cursor, claimed: Claimed, result: Result) -> None:
        pause = self.settings.relay_pause
        if result.outcome is Outcome.DEFERRED and result.scope is Scope.RELAY:
            self._over = True
            if result.stage is Stage.CONNECT and result.smtp_code == 421 and self._others(cursor):
                # It has enough connections: this place rests, the others go on.
                self._rest = REST
            else:
                pause = self.relay.trouble(cursor, result, is_probe=self._is_probe)
                self._is_probe = False
        elif self._is_probe and result.stage is not Stage.PREPARE:
            self.relay.well(cursor)
            self._is_probe = False
        settlement = settlement_for(
            result,
            attempt_count=claimed.attempt_count + 1,
            settings=self.settings,
            relay_pause=pause,
        )
        delivery.settle(cursor, claimed, settlement)
        level = logging.DEBUG if result.outcome is Outcome.SENT else logging.INFO
        logger.log(
            level,
            "Delivery %s: %s at %s, now %s: %s",
            claimed.id,
            settlement.outcome.value,
            settlement.stage.value,
            settlement.state,
            settlement.reason,
        )

    def _others(self, cursor: Cursor) -> bool:
        cursor.execute(query("sender_others"), {"token": self._place.token})
        row = cursor.fetchone()
        return row is not None and bool(row[0])

    def _settle_patiently(self, claimed: Claimed, result: Result) -> None:
        """Write an outcome that is known although the database is away: it may be back soon, and
        what is known need not become uncertain."""
        deadline = boot_clock() + SETTLE_PATIENCE.total_seconds()
        pause = 0.1
        settlement = settlement_for(
            result,
            attempt_count=claimed.attempt_count + 1,
            settings=self.settings,
            relay_pause=self.settings.relay_pause,
        )
        if result.outcome is Outcome.ABANDONED:
            # Not the delivery's fault.
            settlement = replace(settlement, refund=1)
        while boot_clock() < deadline:
            connection: Connection | None = None
            try:
                connection = connect(self.url, application_name="pipeline sender")
                with transaction(connection) as cursor:
                    delivery.settle(cursor, claimed, settlement)
                self._count(result.outcome.value)
                return
            except psycopg2.Error as error:
                logger.info("The database is still away: %s", error)
                time.sleep(pause)
                pause = min(pause * 2, 5.0)
            finally:
                if connection is not None:
                    connection.close()
        logger.error(
            "The outcome of delivery %s could not be written; its attempt ended %s (%s).",
            claimed.id,
            result.outcome.value,
            result.reason,
        )

    def _count(self, outcome: str) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1


def _prepared(outcome: Outcome, error: str) -> Result:
    return Result(outcome, Scope.MESSAGE, Stage.PREPARE, error=error)
