"""What the results of attempts mean for their deliveries, and for the relay."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from . import delivery
from .database import LOCK_TIMEOUT, Connection, Cursor, Statement, query, transaction
from .lane import Lane
from .prepared import Prepared
from .reading import Closing
from .relay_state import RelayState
from .replies import Outcome, Scope, Stage
from .settings import Settings
from .settling import settle_at_once, write_outcome
from .smtp import Result

#: A place that the relay refused a connection for, while others have theirs, rests this long.
REST = timedelta(seconds=30)

#: Outcomes after which the delivery waits again, or something is said about the relay.
_NOT_FINAL = (Outcome.DEFERRED, Outcome.ABANDONED, Outcome.UNCERTAIN)


class Outcomes:
    """Writes them down.

    Attributes:
      is_probe: The relay is on trial, with what is sent now.
      relay_failed: It is left alone from now on.
    """

    def __init__(
        self, connection: Connection, prepared: Prepared, settings: Settings, relay: RelayState
    ) -> None:
        self.connection = connection
        self.prepared = prepared
        self.settings = settings
        self.relay = relay
        self.is_probe = False
        self.relay_failed = False

    def written_at_once(self, ended: Sequence[Lane]) -> list[Lane]:
        """The lanes whose results take no more than a statement: see `statements`."""
        return [lane for lane in ended if self._is_simple(lane.result)]

    def _is_simple(self, result: Result | Closing) -> bool:
        # Else the relay's state changes, or the delivery finds its place among those that wait.
        if isinstance(result, Closing):
            return True
        return not self.is_probe and result.outcome not in _NOT_FINAL

    def statements(self, ended: Sequence[Lane]) -> list[Statement]:
        """What writes the results of lanes that are `written_at_once`."""
        closings = [
            delivery.closing(lane.claimed, state=lane.result.state, reason=lane.result.reason)
            for lane in ended
            if isinstance(lane.result, Closing)
        ]
        results = [(lane.claimed, lane.result) for lane in ended if isinstance(lane.result, Result)]
        return [*closings, *([settle_at_once(self.settings, results)] if results else [])]

    def write(self, lane: Lane) -> None:
        """Write one result, whatever it is, in a transaction of its own."""
        result = lane.result
        if isinstance(result, Closing) or self._is_simple(result):
            self.prepared.run(*self.statements([lane]))
            return
        with transaction(self.connection, lock_timeout=LOCK_TIMEOUT) as cursor:
            pause = self._judge_relay(cursor, lane, result)
            write_outcome(cursor, self.settings, lane.claimed, result, relay_pause=pause)

    def _judge_relay(self, cursor: Cursor, lane: Lane, result: Result) -> timedelta:
        """What the result says about the relay.

        Returns:
          How long it is left alone, if it is in trouble.
        """
        pause = self.settings.relay_pause
        if result.outcome is Outcome.UNCERTAIN:
            # A relay that loses its replies would make everything uncertain that it is given: from
            # now on it gets one mail at a time, and longer and longer pauses, until it answers.
            self.relay_failed = True
            self.relay.trouble(cursor, result, is_probe=self.is_probe)
            self.is_probe = False
        elif result.outcome is Outcome.DEFERRED and result.scope is Scope.RELAY:
            if result.stage is Stage.CONNECT and result.smtp_code == 421 and _others(cursor, lane):
                # It has enough connections: this place rests, the others go on.
                lane.is_over = True
                lane.rest = REST
            else:
                self.relay_failed = True
                pause = self.relay.trouble(cursor, result, is_probe=self.is_probe)
                self.is_probe = False
        elif self.is_probe and result.stage is not Stage.PREPARE:
            self.relay.well(cursor)
            self.is_probe = False
        return pause


def _others(cursor: Cursor, lane: Lane) -> bool:
    cursor.execute(query("sender_others"), {"token": lane.place.token})
    row = cursor.fetchone()
    return row is not None and bool(row[0])
