"""The deliveries that a turn has claimed and not yet begun."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

from . import delivery
from .database import Connection, Cursor, Statement, boot_clock, transaction
from .delivery import Claimed
from .lane import Lane, Phase
from .lease import Keeper
from .outcomes import Outcomes
from .prepared import Prepared
from .reading import Ahead
from .settings import Settings

#: What became due is looked for from the beginning this often, in seconds.
LOOK_BACK = 5.0

#: A lane, and what it is to have in hand.
Pair: TypeAlias = tuple[Lane, Claimed]


class Stock:
    """Claims for all lanes of a turn, and gives them what they begin next.

    Parameters:
      ahead: Is told what will be asked for.
      outcomes: Knows whether the relay is on trial.
    """

    def __init__(
        self,
        connection: Connection,
        prepared: Prepared,
        settings: Settings,
        *,
        keeper: Keeper,
        ahead: Ahead,
        outcomes: Outcomes,
    ) -> None:
        self.connection = connection
        self.prepared = prepared
        self.settings = settings
        self.keeper = keeper
        self.ahead = ahead
        self.outcomes = outcomes
        self._claims: deque[Claimed] = deque()
        #: What was claimed last, and when it was last claimed from the beginning.
        self._last: Claimed | None = None
        self._looked_at = 0.0

    def supply(self, free: Sequence[Lane], lanes: Sequence[Lane]) -> bool:
        """Have free lanes begin something.

        Returns:
          Whether there is anything to do.
        """
        if not self._claims:
            return self._claim(free, lanes)
        following = self.following(free)
        rows = self.prepared.run(self.beginning(following))
        self.take(following, {row[0] for row in rows})
        return True

    def _claim(self, free: Sequence[Lane], lanes: Sequence[Lane]) -> bool:
        """The next chunk, its first attempts begun; one delivery while the relay is on trial."""
        relay = self.outcomes.relay
        with transaction(self.connection, walks=True) as cursor:
            is_probe = self.outcomes.is_probe
            entry = "probe" if is_probe else relay.enter(cursor)
            limits = {"open": self.settings.chunk * len(lanes), "probe": 1, "wait": 0}
            chunk = self._claimed(cursor, limits[entry])
            first = list(zip(free, chunk, strict=False))
            if first:
                cursor.execute(*self.beginning(first))
                begun = {row[0] for row in cursor.fetchall()}
            elif entry == "probe" and not is_probe:
                # Nothing to try the relay with: the trial is for whoever comes next.
                relay.stay_on_trial(cursor)
        if not chunk:
            return False
        self.outcomes.is_probe = entry == "probe"
        for claimed in chunk:
            self.keeper.hold(claimed.id, claimed.token)
        self._claims.extend(chunk[len(first) :])
        waiting = [lane.claimed.subject for lane in lanes if lane.phase is Phase.BEGUN]
        self.ahead.begin([*waiting, *(claimed.subject for claimed in chunk)])
        self.take(first, begun)
        return True

    def _claimed(self, cursor: Cursor, limit: int) -> list[Claimed]:
        """Mostly what lies behind the last ones, and now and then, or if that is little, from the
        beginning: something may have become due that was older.
        """
        chunk: list[Claimed] = []
        lease = self.settings.lease
        if self._last is not None and boot_clock() - self._looked_at < LOOK_BACK:
            chunk = delivery.claim(cursor, limit=limit, lease=lease, after=self._last)
        if len(chunk) < limit:
            self._looked_at = boot_clock()
            chunk += delivery.claim(cursor, limit=limit - len(chunk), lease=lease)
        self._last = max(chunk, key=lambda each: (each.due_at, each.id), default=None)
        return chunk

    def following(self, lanes: Sequence[Lane]) -> list[Pair]:
        """What these lanes, which are free or about to be, do next: as far as it goes."""
        return [(lane, self._claims.popleft()) for lane in lanes[: len(self._claims)]]

    def beginning(self, following: Sequence[Pair]) -> Statement:
        """The statement that begins it: it has a row, the id, for each that is still ours."""
        return delivery.beginning(
            [claimed for _, claimed in following],
            workers=[lane.worker for lane, _ in following],
            lease=self.settings.lease,
        )

    def put_back(self, following: Sequence[Pair]) -> None:
        """It could not be begun now."""
        self._claims.extendleft(claimed for _, claimed in reversed(following))

    def take(self, following: Sequence[Pair], begun: set[str]) -> None:
        """Have lanes take in hand what has begun, when the relay may be given it."""
        taken = [pair for pair in following if pair[1].id in begun]
        for _, claimed in following:
            if claimed.id not in begun:
                # It was taken over since the claim: leave it alone.
                self.keeper.drop(claimed.id)
        waits = [0.0] * len(taken)
        if self.settings.relay_rate is not None and taken:
            with transaction(self.connection) as cursor:
                waits = [self.outcomes.relay.slot(cursor) for _ in taken]
        now = time.monotonic()
        for (lane, claimed), wait in zip(taken, waits, strict=True):
            lane.take(claimed, starts_at=now + wait)

    def release(self) -> None:
        """Put back whatever has not begun."""
        while self._claims:
            unbegun = self._claims[0]
            delivery.release(self.connection, unbegun)
            self._claims.popleft()
            self.keeper.drop(unbegun.id)
