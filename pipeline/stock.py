"""The deliveries that a turn has claimed and not yet begun."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeAlias

import psycopg2

from . import delivery
from .attempting import abandoned
from .database import (
    LOCK_TIMEOUT,
    SHARED_LOCK_TIMEOUT,
    Connection,
    Cursor,
    Statement,
    boot_clock,
    transaction,
)
from .delivery import Claimed
from .lane import Lane, Phase
from .lease import Keeper
from .outcomes import Outcomes
from .prepared import Prepared
from .reading import Ahead
from .settings import Settings

logger = logging.getLogger(__name__)

#: What became due is looked for from the beginning this often, in seconds.
LOOK_BACK = 5.0

#: What can't be put back, since somebody has locked it, is tried for so many seconds altogether.
RELEASE_PATIENCE = 5.0

#: When so many can't be begun at a time it is no longer the trouble of each alone.
MOST_FAILURES = 3

#: A lane, and what it is to have in hand.
Pair: TypeAlias = tuple[Lane, Claimed]


class Stock:
    """Claims for all lanes of a turn, and gives them what they begin next.

    Parameters:
      keeper: Renews the leases of all that was claimed, until it is dropped.
      ahead: Is told what will be asked for.
      outcomes: Knows whether the relay is on trial.

    Attributes:
      trouble: Why nothing more can be begun, if so.
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
        self.trouble: psycopg2.Error | None = None
        self._claims: deque[Claimed] = deque()
        #: What is being begun.
        self._beginning: list[Claimed] = []
        #: What was claimed last, and when it was last claimed from the beginning.
        self._last: Claimed | None = None
        self._looked_at = 0.0
        #: When something could not be put back for the first time.
        self._stuck_at: float | None = None

    def __len__(self) -> int:
        return len(self._claims)

    def supply(self, free: Sequence[Lane], lanes: Sequence[Lane]) -> bool:
        """Have free lanes begin something.

        Returns:
          Whether there is anything to do. Not when there is `trouble`.

        Raises:
          psycopg2.Error: When the connection is broken.
        """
        try:
            if not self._claims:
                try:
                    return self._claim(free, lanes)
                except psycopg2.Error:
                    if self.connection.closed:
                        raise
                # One of them can't be begun, perhaps: that must be the trouble of that one alone.
                if not self._claim((), lanes):
                    return False
            self._begin(free)
        except psycopg2.Error as error:
            if self.connection.closed:
                raise
            self.trouble = error
        return self.trouble is None

    def _begin(self, free: Sequence[Lane]) -> None:
        following = self.following(free)
        try:
            rows = self.prepared.run(self.beginning(following))
        except psycopg2.Error:
            if self.connection.closed:
                raise
            self.put_back(following)
            self._begin_each(free)
        else:
            self.take(following, {row[0] for row in rows})

    def _begin_each(self, free: Sequence[Lane]) -> None:
        """One of them can't be begun, mostly since somebody has locked it: it waits for its lease,
        and the others are begun.
        """
        failures = 0
        for lane in free:
            while self._claims and not lane.is_busy:
                following = self.following([lane])
                try:
                    rows = self.prepared.run(self.beginning(following))
                except psycopg2.Error as error:
                    if self.connection.closed:
                        raise
                    self._leave_to_its_lease(following[0][1], error)
                    failures += 1
                    if failures >= MOST_FAILURES:
                        raise
                else:
                    self.take(following, {row[0] for row in rows})

    def _claim(self, free: Sequence[Lane], lanes: Sequence[Lane]) -> bool:
        """The next chunk, its first attempts begun; one delivery while the relay is on trial."""
        relay = self.outcomes.relay
        with transaction(self.connection, walks=True, lock_timeout=LOCK_TIMEOUT) as cursor:
            is_probe = self.outcomes.is_probe
            entry = "probe" if is_probe else relay.enter(cursor)
            limits = {"open": self.settings.chunk * len(lanes), "probe": 1, "wait": 0}
            chunk = self._claimed(cursor, limits[entry])
            first = list(zip(free, chunk, strict=False))
            begun: set[str] = set()
            if first:
                cursor.execute(*self.beginning(first))
                begun = {row[0] for row in cursor.fetchall()}
            elif entry == "probe" and not is_probe and not chunk:
                # Nothing to try the relay with: the trial is for whoever comes next.
                relay.stay_on_trial(cursor)
        self._last = max(chunk, key=lambda each: (each.due_at, each.id), default=None)
        if not chunk:
            return False
        self.outcomes.is_probe = entry == "probe"
        for claimed in chunk:
            self.keeper.hold(claimed.id, claimed.token)
        self._claims.extend(chunk[len(first) :])
        self._beginning = chunk[: len(first)]
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
        return chunk

    def following(self, lanes: Sequence[Lane]) -> list[Pair]:
        """What these lanes, which are free or about to be, do next: as far as it goes.

        To be followed by `take` or `put_back`.
        """
        following = [(lane, self._claims.popleft()) for lane in lanes[: len(self._claims)]]
        self._beginning = [claimed for _, claimed in following]
        return following

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
        self._beginning = []

    def take(self, following: Sequence[Pair], begun: set[str]) -> None:
        """Have lanes take in hand what has begun, when the relay may be given it."""
        taken = [pair for pair in following if pair[1].id in begun]
        for _, claimed in following:
            if claimed.id not in begun:
                # It was taken over since the claim: leave it alone.
                self.keeper.drop(claimed.id, claimed.token)
        now = time.monotonic()
        try:
            waits = self._slots(len(taken))
        except psycopg2.Error as error:
            if self.connection.closed:
                raise
            self.trouble = error
            for lane, claimed in taken:
                lane.take(claimed, starts_at=now)
                lane.end(abandoned(f"nobody knows when the relay may be given it: {error}"))
        else:
            for (lane, claimed), wait in zip(taken, waits, strict=True):
                lane.take(claimed, starts_at=now + wait)
        self._beginning = []

    def _slots(self, count: int) -> list[float]:
        """When the relay may be given so many mails, in seconds from now."""
        if self.settings.relay_rate is None or not count:
            return [0.0] * count
        with transaction(self.connection, lock_timeout=SHARED_LOCK_TIMEOUT) as cursor:
            return [self.outcomes.relay.slot(cursor) for _ in range(count)]

    def release(self, limit: int | None = None) -> None:
        """Put back what has not begun.

        What can't be, since somebody has locked it or its stack, is tried again for a while, and
        then waits for its lease.

        Parameters:
          limit: At most so many tries.

        Raises:
          psycopg2.Error: When the connection is broken.
        """
        tries = 0
        while self._claims and (limit is None or tries < limit):
            tries += 1
            unbegun = self._claims[0]
            try:
                delivery.release(self.connection, unbegun)
            except psycopg2.Error as error:
                if self.connection.closed:
                    raise
                self._claims.rotate(-1)
                if not self._is_worth_a_try():
                    for claimed in self._claims:
                        self._leave_to_its_lease(claimed, error)
                    self._claims.clear()
            else:
                self._claims.popleft()
                self.keeper.drop(unbegun.id, unbegun.token)

    def _is_worth_a_try(self) -> bool:
        """Whether it is not yet long since something could not be put back for the first time."""
        now = time.monotonic()
        self._stuck_at = now if self._stuck_at is None else self._stuck_at
        return now - self._stuck_at < RELEASE_PATIENCE

    def abandon(self) -> None:
        """Let go of all that no lane has in hand, put back or not."""
        if not self.connection.closed:
            with suppress(psycopg2.Error):
                self.release()
        for claimed in (*self._beginning, *self._claims):
            self.keeper.drop(claimed.id, claimed.token)
        self._beginning = []
        self._claims.clear()

    def _leave_to_its_lease(self, claimed: Claimed, error: psycopg2.Error) -> None:
        logger.warning("Delivery %s is left until its lease is over: %s", claimed.id, error)
        self.keeper.drop(claimed.id, claimed.token)
