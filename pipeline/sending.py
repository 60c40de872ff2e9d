"""A sender: what a worker is while it answers a doorbell.

It takes a place, which is the right to one connection to the relay, and joins the turn of its
process with it, or begins one: see `turn.py`. The thread waits until its lane has nothing to do.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing

from .database import SHARED_LOCK_TIMEOUT, Connection, boot_clock, connect, query, transaction
from .doorbells import Doorbells
from .lane import Lane, Place
from .lease import PLACE_LEASE
from .reader import Pace
from .relay_state import RelayState
from .settings import Settings
from .settling import write_outcome_patiently
from .smtp import Relay, Session, Timeouts
from .turn import Turn


def worker_name() -> str:
    """Who writes an attempt: `host:process id:thread id`."""
    return f"{socket.gethostname()}:{os.getpid()}:{threading.get_native_id()}"


class Sender:
    """Answers doorbells, in any number of threads.

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
        self._lock = threading.Lock()
        self._turn: Turn | None = None
        self._pace = Pace()

    def answer(self, message_id: str | None = None) -> dict[str, int]:
        """Send until nothing waits, the slice is over, or the worker is being stopped.

        Parameters:
          message_id: The doorbell's Dramatiq message.

        Returns:
          How many attempts ended with which outcome; `suppressed` and `skipped` are among them.

        Raises:
          psycopg2.Error: When the database is away. What was in hand is recovered later.
        """
        with ExitStack() as own:
            connection = own.enter_context(
                closing(connect(self.url, application_name="pipeline sender"))
            )
            place = self._take_place(connection, message_id)
            if place is None:
                return {}
            lane = Lane(place, self._session(), worker=worker_name(), message_id=message_id)
            turn = self._turn_of(lane, connection)
            if turn.connection is connection:
                own.pop_all()
        try:
            lane.done.wait()
            lane.session.close()
            self._write_owed(lane, turn)
        finally:
            turn.through(lane)
        if lane.error is not None:
            raise lane.error
        return dict(lane.outcomes)

    def _turn_of(self, lane: Lane, connection: Connection) -> Turn:
        """The turn that a lane is in from now on: the one of this process, or a new one."""
        with self._lock:
            if self._turn is not None and self._turn.join(lane):
                return self._turn
            turn = Turn(
                connection,
                self.url,
                self.settings,
                leave=self._leave,
                should_stop=self.should_stop,
                ends_at=lane.place.taken_at + self.settings.slice.total_seconds(),
                pace=self._pace,
            )
            turn.join(lane)
            try:
                turn.start()
            except BaseException:
                turn.through(lane)
                raise
            self._turn = turn
            return turn

    def _write_owed(self, lane: Lane, turn: Turn) -> None:
        if lane.owed is not None:
            claimed, result = lane.owed
            try:
                write_outcome_patiently(self.url, self.settings, claimed, result)
            finally:
                turn.keeper.drop(claimed.id, claimed.token)

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

    def _leave(
        self, connection: Connection, lanes: Sequence[Lane], on_trial: RelayState | None
    ) -> None:
        """Give the places of lanes back, and call for others if there is more to do.

        Parameters:
          on_trial: The relay, if it was to be tried and was not: somebody else may.
        """
        relay = RelayState.of(self.settings)
        with transaction(connection, walks=True, lock_timeout=SHARED_LOCK_TIMEOUT) as cursor:
            if any(lane.rest for lane in lanes):
                cursor.execute(query("doorbells_lock"))
            for lane in lanes:
                cursor.execute(
                    query("sender_leave"),
                    {"slot": lane.place.slot, "token": lane.place.token, "rest": lane.rest},
                )
                self.doorbells.over(cursor, lane.message_id)
            if on_trial is not None:
                on_trial.stay_on_trial(cursor)
            self.doorbells.ring_senders(cursor, relay.useful_senders(cursor))
