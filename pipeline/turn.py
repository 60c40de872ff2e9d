"""A turn: one slice of time in which the senders of a process send, in one thread for all.

Each sender has a lane with a connection of its own to the relay; what they need of the database is
asked for together. Python runs one thread at a time, so a thread for each would gain nothing, and
each would wait for the disk alone.

What is done next, in this order: read what servers say; write down what is known; make the next
mail; set markers and send dots. For a server that answers within milliseconds it is waited, so that
what several lanes need is one transaction, and so that no mail is made while a reply is due: the
time in which an outcome is uncertain is no longer than it would be with a thread for each.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing

import psycopg2

from .attempting import GivenUpError, Source, abandoned, attempt, mark
from .database import Connection, boot_clock
from .delivery import Claimed
from .lane import Lane, Phase
from .lease import Keeper
from .listening import Listener
from .outcomes import Outcomes
from .prepared import Prepared
from .reader import Pace, Reader
from .reading import Ahead
from .relay_state import RelayState
from .settings import Settings
from .smtp import Result
from .stock import Stock

logger = logging.getLogger(__name__)

#: How many lanes a turn has at the most.
MOST_LANES = 32

#: So many claims are put back before it is looked again what servers say.
RELEASED_AT_ONCE = 8


class Turn:
    """One slice of time of some senders.

    Parameters:
      connection: The turn's from now on; it is closed at its end.
      leave: Gives the places of lanes back.
      should_stop: Asked between two mails.
      ends_at: When nothing more is begun, as of `boot_clock`.
      pace: Of reading, in this process.
    """

    def __init__(
        self,
        connection: Connection,
        url: str,
        settings: Settings,
        *,
        leave: Callable[[Connection, Sequence[Lane], RelayState | None], None],
        should_stop: Callable[[], bool],
        ends_at: float,
        pace: Pace,
    ) -> None:
        self.settings = settings
        self.should_stop = should_stop
        self.ends_at = ends_at
        self._leave = leave
        self.relay = RelayState.of(settings)
        self.keeper = Keeper(url, lease=settings.lease)
        self._lock = threading.Lock()
        self._is_open = True
        self._coming: list[Lane] = []
        self._lanes: list[Lane] = []
        #: How many have joined and are not yet through.
        self._inside = 0
        self._listener = Listener()
        self.connection = connection
        self._prepared = Prepared(connection)
        self._ahead = Ahead(connection, pace.took)
        self._pace = pace
        self._reader = Reader(url, pace, self._listener.wake)
        self._outcomes = Outcomes(connection, self._prepared, settings, self.relay)
        self._stock = Stock(
            connection,
            self._prepared,
            settings,
            keeper=self.keeper,
            ahead=self._ahead,
            outcomes=self._outcomes,
        )
        self._thread = threading.Thread(target=self._carry_on, name="pipeline-turn", daemon=True)

    def start(self) -> None:
        """Carry on all lanes, in a thread of its own, until none is left."""
        self._thread.start()

    def join(self, lane: Lane) -> bool:
        """Have a lane taken into the turn, if it takes any more. See `through`."""
        with self._lock:
            is_full = self._inside >= MOST_LANES
            # One that begins nothing more may still have to wait for a server, for minutes.
            is_over = self._inside > 0 and not self._goes_on()
            if is_full or is_over or not self._is_open:
                return False
            self._coming.append(lane)
            self._inside += 1
            place = lane.place
            self.keeper.keep(place.slot, place.token, taken_at=place.taken_at)
            self._listener.wake()
        return True

    def through(self, lane: Lane) -> None:
        """Nothing of what a lane had in hand has to be kept any more."""
        self.keeper.leave(lane.place.token)
        with self._lock:
            self._inside -= 1
            is_last = self._inside == 0
            if is_last:
                self._is_open = False
        if is_last:
            if self._thread.ident is not None:
                self._thread.join()
            self.keeper.stop()
            self._listener.close()

    def _carry_on(self) -> None:
        error: Exception | None = RuntimeError("the turn ended before its time")
        with closing(self.connection):
            try:
                self.keeper.start()
                self._run()
                error = None
            except Exception as broken:
                logger.warning("The senders of this process stop at once.", exc_info=True)
                error = broken
                self._wind_down(broken)
            finally:
                self._reader.stop()
                self._end(error)

    def _end(self, error: Exception | None) -> None:
        """Let go of what is left: after an orderly end there is nothing."""
        with self._lock:
            self._is_open = False
        for lane in [*self._lanes, *self._coming]:
            if lane.phase is Phase.ENDED and error is not None:
                self._owe(lane, error)
                continue
            if lane.is_busy:
                self.keeper.drop(lane.claimed.id, lane.claimed.token)
                lane.let_go()
            self._give_up(lane, error)

    # -- what is next --------------------------------------------------------------------------

    def _run(self) -> None:
        while self._admit():
            self._supply()
            for lane in self._lanes:
                # What was read later than this wakes the listener.
                lane.is_reading = lane.is_reading and not self._reader.has(lane.claimed.id)
            if not self._lanes or self._listener.listen(
                self._lanes, is_urged=self._is_putting_back()
            ):
                continue
            if self._in(Phase.ENDED):
                self._mark()
                self._settle()
            elif startable := self._startable():
                self._start(startable)
            else:
                self._mark()
        self._stock.release()

    def _admit(self) -> bool:
        with self._lock:
            self._lanes += self._coming
            self._coming = []
            self._is_open = bool(self._lanes)
            return self._is_open

    def _in(self, phase: Phase) -> list[Lane]:
        return [lane for lane in self._lanes if lane.phase is phase]

    def _startable(self) -> list[Lane]:
        now = time.monotonic()
        due = [lane for lane in self._in(Phase.BEGUN) if lane.starts_at <= now]
        if self._pace.is_slow:
            for lane in due:
                if not lane.is_reading and not self._reader.has(lane.claimed.id):
                    lane.is_reading = True
                    self._reader.ask(lane.claimed.subject)
        return [lane for lane in due if not lane.is_reading]

    # -- taking up -----------------------------------------------------------------------------

    def _goes_on(self) -> bool:
        return not (
            self._outcomes.relay_failed
            or self._stock.trouble
            or self.should_stop()
            or self._is_late()
        )

    def _is_late(self) -> bool:
        return boot_clock() >= self.ends_at

    def _is_putting_back(self) -> bool:
        return len(self._stock) > 0 and not self._goes_on()

    def _supply(self) -> None:
        """Give free lanes something to do, or have them leave."""
        if not self._goes_on():
            self._stock.release(RELEASED_AT_ONCE)
        if free := self._in(Phase.FREE):
            self._part(self._without_work(free))
        if gone := self._in(Phase.GONE):
            self._retire(gone)

    def _without_work(self, free: Sequence[Lane]) -> list[Lane]:
        """Give lanes something to do, as far as there is. Those for which there won't be."""
        if not self._goes_on():
            return list(free)
        able = [lane for lane in free if self._is_able(lane)]
        # While the relay is on trial with one, the others wait for what comes of it.
        is_tried = self._outcomes.is_probe and any(lane.is_busy for lane in self._lanes)
        if able and not is_tried and not self._stock.supply(able, self._lanes):
            return self._in(Phase.FREE)
        return [lane for lane in free if lane not in able]

    def _is_able(self, lane: Lane) -> bool:
        """Whether something more may be begun in a lane."""
        return not lane.is_over and self.keeper.has(lane.place.token)

    def _start(self, startable: Sequence[Lane]) -> None:
        """Make mails and begin to hand them over; only one while the reply to a dot is due."""
        is_due = any(lane.in_window for lane in self._lanes)
        for lane in startable[:1] if is_due else startable:
            lane.start(
                attempt(self.settings, lane.session, self._source(lane.claimed), lane.claimed)
            )

    def _source(self, claimed: Claimed) -> Source:
        return self._reader.take(claimed.id, self.connection) or self._ahead

    # -- writing down --------------------------------------------------------------------------

    def _mark(self) -> None:
        """Set the markers of all that ask for it, and send their dots."""
        asking = self._in(Phase.ASKING)
        if not asking:
            return
        try:
            markers = mark(self._prepared, self.settings, [lane.claimed for lane in asking])
        except psycopg2.Error:
            if self.connection.closed:
                raise
            self._mark_each(asking)
            return
        for lane in asking:
            lane.answer(markers.allow(lane.claimed))

    def _mark_each(self, asking: Sequence[Lane]) -> None:
        """One of them can't be marked: that must be the trouble of that one alone."""
        for lane in asking:
            try:
                markers = mark(self._prepared, self.settings, [lane.claimed])
            except psycopg2.Error as error:
                if self.connection.closed:
                    raise
                lane.throw(error)
            else:
                lane.answer(markers.allow(lane.claimed))

    def _settle(self) -> None:
        """Write down what is known, and begin what is next in the same transaction."""
        ended = self._in(Phase.ENDED)
        at_once = self._outcomes.written_at_once(ended)
        if at_once:
            self._settle_at_once(at_once)
        for lane in ended:
            if lane not in at_once:
                self._settle_one(lane)

    def _settle_at_once(self, ended: Sequence[Lane]) -> None:
        settled = [lane.claimed for lane in ended]
        able = [lane for lane in ended if self._goes_on() and self._is_able(lane)]
        following = self._stock.following(able)
        statements = self._outcomes.statements(ended)
        if following:
            statements.append(self._stock.beginning(following))
        try:
            rows = self._prepared.run(*statements)
        except psycopg2.Error:
            if self.connection.closed:
                raise
            # One of them can't be written: that must be the trouble of that one alone.
            self._stock.put_back(following)
            for lane in ended:
                self._settle_one(lane)
            return
        self._wrote(ended, settled)
        self._stock.take(following, {row[0] for row in rows} if following else set())

    def _settle_one(self, lane: Lane) -> None:
        claimed = lane.claimed
        try:
            self._outcomes.write(lane)
        except psycopg2.Error as error:
            if self.connection.closed:
                raise
            self._owe(lane, error)
            return
        self._wrote([lane], [claimed])

    def _wrote(self, lanes: Sequence[Lane], settled: Sequence[Claimed]) -> None:
        for lane, claimed in zip(lanes, settled, strict=True):
            result = lane.result
            name = result.outcome.value if isinstance(result, Result) else result.state
            lane.outcomes[name] += 1
            lane.let_go()
            self.keeper.drop(claimed.id, claimed.token)

    # -- leaving -------------------------------------------------------------------------------

    def _part(self, lanes: Sequence[Lane]) -> None:
        """Have lanes take leave of the relay; what no lane is left for is put back."""
        for lane in lanes:
            lane.is_over = True
        if lanes and all(lane.is_over for lane in self._lanes):
            self._stock.release()
        for lane in lanes:
            lane.part()

    def _retire(self, lanes: Sequence[Lane]) -> None:
        """Give back the places of lanes that have no connection any more."""
        are_all = len(lanes) == len(self._lanes)
        on_trial = self.relay if are_all and self._outcomes.is_probe else None
        error: Exception | None = self._stock.trouble
        try:
            self._leave(self.connection, lanes, on_trial)
        except Exception as broken:
            if self.connection.closed:
                raise
            # Then they are free when their leases are over.
            error = broken
        for lane in lanes:
            self._lanes.remove(lane)
            self._give_up(lane, error)

    def _owe(self, lane: Lane, error: Exception) -> None:
        """Its outcome can't be written now: that is left to its own thread."""
        if isinstance(lane.result, Result):
            lane.owed = lane.claimed, lane.result
        else:
            self.keeper.drop(lane.claimed.id, lane.claimed.token)
        lane.let_go()
        self._lanes.remove(lane)
        self._give_up(lane, error)

    def _give_up(self, lane: Lane, error: Exception | None) -> None:
        lane.error = error
        lane.done.set()

    def _wind_down(self, error: Exception) -> None:
        """End at once. What has no marker was not sent; for what was sent the reply is waited for,
        and all that is known is written by the threads of the lanes, over other connections.
        """
        with self._lock:
            self._is_open = False
            self._lanes += self._coming
            self._coming = []
        self._stock.abandon()
        for lane in list(self._lanes):
            if not lane.is_busy:
                self._lanes.remove(lane)
                lane.let_go()
                self._give_up(lane, error)
            elif lane.phase is Phase.BEGUN:
                lane.end(abandoned(f"its sender had to stop: {error}"))
            elif lane.phase is Phase.ASKING or (lane.phase is Phase.TALKING and not lane.in_window):
                lane.throw(GivenUpError(f"its sender had to stop: {error}"))
        while True:
            for lane in self._in(Phase.ENDED):
                self._owe(lane, error)
            if not self._in(Phase.TALKING):
                return
            self._listener.listen(self._lanes)
