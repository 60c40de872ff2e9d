"""A turn: one slice of time in which the senders of a process send, all in one thread.

Each sender has a lane with a connection of its own to the relay; what they need of the database is
asked for together. Python runs one thread at a time, so a thread for each would gain nothing, and
each would wait for the disk alone.

What is done next, in this order: read what servers say; write down what is known; make the next
mail; set markers and send dots. For a server that answers within milliseconds it is waited, so that
what several lanes need is one transaction, and so that no mail is made while a reply is due: the
time in which an outcome is uncertain is no longer than it would be with a thread for each.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import psycopg2

from .attempting import DatabaseAwayError, abandoned, attempt, mark
from .database import Connection, boot_clock
from .delivery import Claimed
from .lane import Lane, Phase
from .lease import Keeper
from .listening import Listener
from .outcomes import Outcomes
from .prepared import Prepared
from .reading import Ahead
from .relay_state import RelayState
from .settings import Settings
from .smtp import Result
from .stock import Stock

#: How many lanes a turn has at the most.
MOST_LANES = 32


class Turn:
    """One slice of time of some senders.

    Parameters:
      leave: Gives a lane's place back, in the transaction of a cursor.
      should_stop: Asked between two mails.
      ends_at: When nothing more is begun, as of `boot_clock`.
    """

    def __init__(
        self,
        url: str,
        settings: Settings,
        *,
        leave: Callable[[Connection, Sequence[Lane], RelayState | None], None],
        should_stop: Callable[[], bool],
        ends_at: float,
    ) -> None:
        self.url = url
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

    def join(self, lane: Lane) -> bool:
        """Have a lane taken into the turn, if it takes any more. See `through`."""
        with self._lock:
            is_full = self._inside >= MOST_LANES or (self._inside > 0 and self._is_late())
            if is_full or not self._is_open:
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
            is_last = self._inside == 0 and not self._is_open
        if is_last:
            self.keeper.stop()
            self._listener.close()

    def lead(self, connection: Connection) -> None:
        """Carry on all lanes, until none is left. One of the threads whose lanes they are does."""
        error: BaseException | None = None
        try:
            self._open(connection)
            try:
                self._run()
            except psycopg2.Error as broken:
                error = broken
                self._end_without_database(broken)
        except BaseException as broken:
            error = broken
            raise
        finally:
            with self._lock:
                self._is_open = False
            for lane in [*self._lanes, *self._coming]:
                lane.let_go()
                self._give_up(lane, error)

    def _open(self, connection: Connection) -> None:
        self._connection = connection
        self._prepared = Prepared(connection)
        self._ahead = Ahead(connection)
        self._outcomes = Outcomes(connection, self._prepared, self.settings, self.relay)
        self._stock = Stock(
            connection,
            self._prepared,
            self.settings,
            keeper=self.keeper,
            ahead=self._ahead,
            outcomes=self._outcomes,
        )
        self.keeper.start()

    # -- what is next --------------------------------------------------------------------------

    def _run(self) -> None:
        while self._admit():
            self._supply()
            if not self._lanes or self._listener.listen(self._lanes):
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
        return [lane for lane in self._in(Phase.BEGUN) if lane.starts_at <= now]

    # -- taking up -----------------------------------------------------------------------------

    def _goes_on(self) -> bool:
        return not (self._outcomes.relay_failed or self.should_stop() or self._is_late())

    def _is_late(self) -> bool:
        return boot_clock() >= self.ends_at

    def _supply(self) -> None:
        """Give free lanes something to do, or their places back."""
        free = self._in(Phase.FREE)
        if not free:
            return
        if not self._goes_on():
            self._stock.release()
            self._retire(free)
            return
        able = [lane for lane in free if self._is_able(lane)]
        over = [lane for lane in free if lane not in able]
        is_tried = self._outcomes.is_probe and len(free) < len(self._lanes)
        if able and not is_tried and not self._stock.supply(able, self._lanes):
            over = free
        if over:
            self._retire(over)

    def _is_able(self, lane: Lane) -> bool:
        """Whether something more may be begun in a lane."""
        return not lane.is_over and self.keeper.has(lane.place.token)

    def _start(self, startable: Sequence[Lane]) -> None:
        """Make mails and begin to hand them over; only one while the reply to a dot is due."""
        is_due = any(lane.in_window for lane in self._lanes)
        for lane in startable[:1] if is_due else startable:
            lane.start(attempt(self.settings, lane.session, self._ahead, lane.claimed))

    # -- writing down --------------------------------------------------------------------------

    def _mark(self) -> None:
        """Set the markers of all that ask for it, and send their dots."""
        asking = self._in(Phase.ASKING)
        if not asking:
            return
        try:
            markers = mark(self._prepared, self.settings, [lane.claimed for lane in asking])
        except psycopg2.Error:
            if self._connection.closed:
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
                if self._connection.closed:
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
            if self._connection.closed:
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
            if self._connection.closed:
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
            self.keeper.drop(claimed.id)

    # -- leaving -------------------------------------------------------------------------------

    def _retire(self, lanes: Sequence[Lane]) -> None:
        """Give back the places of lanes that have nothing to do, and what none is left for."""
        are_all = len(lanes) == len(self._lanes)
        if are_all:
            self._stock.release()
        on_trial = self.relay if are_all and self._outcomes.is_probe else None
        self._leave(self._connection, lanes, on_trial)
        for lane in lanes:
            self._lanes.remove(lane)
            lane.done.set()

    def _owe(self, lane: Lane, error: BaseException) -> None:
        """Its outcome can't be written now: that is left to its own thread."""
        if isinstance(lane.result, Result):
            lane.owed = lane.claimed, lane.result
        else:
            self.keeper.drop(lane.claimed.id)
        lane.let_go()
        self._lanes.remove(lane)
        self._give_up(lane, error)

    def _give_up(self, lane: Lane, error: BaseException | None) -> None:
        lane.error = error
        lane.done.set()

    def _end_without_database(self, error: psycopg2.Error) -> None:
        """What can't be marked any more was not sent; for what was sent the reply is waited for."""
        with self._lock:
            self._is_open = False
            self._lanes += self._coming
            self._coming = []
        for lane in self._in(Phase.FREE):
            self._lanes.remove(lane)
            self._give_up(lane, error)
        for lane in list(self._lanes):
            if lane.phase is Phase.BEGUN:
                lane.end(abandoned(f"the database went away: {error}"))
            elif lane.phase is Phase.ASKING or (lane.phase is Phase.TALKING and not lane.in_window):
                lane.throw(DatabaseAwayError(str(error)))
        while True:
            for lane in self._in(Phase.ENDED):
                self._owe(lane, error)
            if not self._in(Phase.TALKING):
                return
            self._listener.listen(self._lanes)
