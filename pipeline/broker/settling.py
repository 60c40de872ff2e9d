"""Settling what workers have finished, and taking back what a lost session had claimed."""

from __future__ import annotations

import logging
import time
from collections import deque

from pipeline.broker.hand import Hand, Settlement
from pipeline.broker.session import Session

logger = logging.getLogger(__name__)

#: Settlements in one statement, at most.
BATCH = 500

#: Seconds until a row that somebody else has locked is asked for again.
RETRY_AFTER = 0.1

#: Tries to take a lock back, and seconds between two: somebody who is just looking for abandoned
#: messages may have it for a moment.
RECLAIM_TRIES, RECLAIM_PAUSE = 6, 0.05


class Settler:
    """The notes that workers leave, until what they ask for has committed.

    Attributes:
      outgoing: New notes; any thread may append.
      retry_at: When to try again those that could not be settled (monotonic).
    """

    def __init__(self, hand: Hand) -> None:
        self._hand = hand
        self.outgoing: deque[Settlement] = deque()
        self._unsettled: list[Settlement] = []
        self.retry_at = 0.0

    def pending_count(self) -> int:
        """Notes that are not settled yet."""
        return len(self.outgoing) + len(self._unsettled)

    def is_waiting(self) -> bool:
        """Whether notes wait for somebody else's row lock."""
        return bool(self._unsettled)

    def settle(self, session: Session) -> list[tuple[str, str]]:
        """Settle what there is, then let its locks go: in this order.

        Returns:
          The messages that others may take now: (queue, id).
        """
        now = time.monotonic()
        if not self.outgoing and (not self._unsettled or now < self.retry_at):
            return []
        while self.outgoing and len(self._unsettled) < BATCH:
            self._unsettled.append(self.outgoing.popleft())
        self.retry_at = now + RETRY_AFTER

        # What was lost is somebody else's: nothing to settle, no lock to let go.
        finished = [one for one in self._unsettled if one.held.is_lost]
        owned = [one for one in self._unsettled if not one.held.is_lost]
        outcomes = self._write(session, owned) if owned else {}
        finished += [one for one in owned if one.held.message_id in outcomes]
        keys = [one.held.lock_key for one in finished if not one.held.is_lost]
        if keys:
            session.unlock(keys)

        done = {id(one) for one in finished}
        self._unsettled = [one for one in self._unsettled if id(one) not in done]
        for one in finished:
            self._hand.let_go(one.held)
        return [
            (queue_name, message_id)
            for message_id, (state, queue_name) in outcomes.items()
            if state == "queued"
        ]

    def _write(self, session: Session, owned: list[Settlement]) -> dict[str, tuple[str, str]]:
        """State and queue of each message that is settled now, by us or before."""
        settled = session.settle(one.as_item() for one in owned)
        outcomes = {
            one.held.message_id: (one.state, one.new_queue or one.held.queue_name)
            for one in owned
            if one.held.message_id in settled
        }
        if len(outcomes) < len(owned):
            others = {o.held.message_id: o for o in owned if o.held.message_id not in settled}
            present = session.states(others)
            for message_id, one in others.items():
                outcome = present.get(message_id, ("", ""))
                # Still as we claimed it: somebody has the row locked.
                if outcome != ("consumed", one.held.queue_name):
                    outcomes[message_id] = outcome
        return outcomes

    def reclaim(self, session: Session) -> None:
        """Take back what the last session had claimed; what can't be had is lost to another."""
        missing = {h.message_id: h for h in list(self._hand.held.values()) if not h.is_lost}
        for attempt in range(RECLAIM_TRIES):
            if not missing:
                return
            if attempt:
                time.sleep(RECLAIM_PAUSE)
            items = [(h.message_id, h.queue_name, h.lock_key, h.token) for h in missing.values()]
            for message_id, is_mine in session.reclaim(items).items():
                if is_mine:
                    del missing[message_id]
        for held in missing.values():
            held.is_lost = True
            logger.warning(
                "message %s was %s while this process had no session",
                held.message_id,
                "settled or taken up by another" if held.is_settling else "taken up by another",
            )
