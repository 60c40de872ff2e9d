"""Claiming messages for the inboxes, and moving delayed ones that are due."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable

from dramatiq.broker import MessageProxy
from dramatiq.errors import DecodeError
from dramatiq.message import Message

from pipeline.broker.hand import FROM_THE_START, Hand, Held, Inbox
from pipeline.broker.session import Candidate, Session, Wanted

logger = logging.getLogger(__name__)

#: Seconds for which a message that another session has locked is left alone.
BLOCKED_FOR = 1.0

#: Seconds until the next claim after one that found nothing, at first and at most.
PAUSE_FIRST, PAUSE_MOST = 0.008, 0.1

#: Seconds that a claim may take, and a message in it, to be cheap; and how many times as long as a
#: claim that isn't has taken it must be to the next like it.
CHEAP, CHEAP_EACH, WHOLE_SHARE = 0.01, 0.001, 20


class Claimer:
    """Fills the inboxes.

    Parameters:
      hand: What the process has in hand.
      settle: Called for a message in hand that nobody gets: it can't be read, or its inbox has been
        closed meanwhile.

    Attributes:
      promote_at: When the next delayed message is due (monotonic).
    """

    def __init__(self, hand: Hand, settle: Callable[[Held, str], None]) -> None:
        self._hand = hand
        self._settle = settle
        self._blocked: dict[str, float] = {}
        #: When a queue may be looked through from its start again.
        self._whole_at = 0.0
        self.promote_at = 0.0

    def restart(self) -> None:
        """Look at everything anew, as after a pause or on a new session."""
        self._blocked.clear()
        self.look_everywhere()

    def look_everywhere(self) -> None:
        """Look for messages of which nobody told."""
        self.promote_at = 0.0
        for inbox in self._hand.open_inboxes():
            inbox.look_again()

    def claim_at(self) -> float:
        """When the next claim may find something (monotonic)."""
        waiting = [inbox.not_before for inbox in self._hand.open_inboxes() if self._wants(inbox)]
        return min(waiting, default=float("inf"))

    @staticmethod
    def _wants(inbox: Inbox) -> bool:
        return inbox.has_more and not inbox.is_delay_queue and inbox.free() > 0

    def claim(self, session: Session) -> None:
        """Claim for every inbox that has room and may find something, in one statement."""
        now = time.monotonic()
        asked = [
            inbox
            for inbox in self._hand.open_inboxes()
            if self._wants(inbox) and now >= inbox.not_before
        ]
        if not asked:
            return
        self._blocked = {key: until for key, until in self._blocked.items() if until > now}
        may_look_everywhere = now >= self._whole_at
        wanted = [
            Wanted(
                inbox.queue_name,
                inbox.free(),
                FROM_THE_START if inbox.is_drained and may_look_everywhere else inbox.since,
            )
            for inbox in asked
        ]
        candidates = session.claim(wanted, [*self._hand.held, *self._blocked])
        if any(want.since == FROM_THE_START for want in wanted):
            # Long for what it found: there are many dead rows, which an old transaction somewhere
            # keeps from being vacuumed. Then only now and then.
            took = time.monotonic() - now
            is_long = took > CHEAP + CHEAP_EACH * len(candidates)
            self._whole_at = now + WHOLE_SHARE * took if is_long else 0.0
        for inbox, want in zip(asked, wanted, strict=True):
            found = [one for one in candidates if one.queue_name == inbox.queue_name]
            inbox.has_more = len(found) == want.amount
            inbox.is_drained = not inbox.has_more
            if found:
                inbox.since = (found[-1].mtime, found[-1].message_id)
            inbox.empty_claim_count = 0 if found else inbox.empty_claim_count + 1
            if not found:
                pause = min(PAUSE_MOST, PAUSE_FIRST * 2 ** min(inbox.empty_claim_count, 6))
                inbox.not_before = now + pause * random.uniform(0.5, 1.0)
            for one in found:
                self._take_in(inbox, one, now)

    def _take_in(self, inbox: Inbox, one: Candidate, now: float) -> None:
        if one.message is None or one.token is None:
            self._blocked[one.message_id] = now + BLOCKED_FOR
            return
        try:
            message = Message.decode(one.message.encode("utf-8"))
            options = dict(message.options)
        except (DecodeError, TypeError, ValueError) as error:
            logger.error("rejecting message %s, which can't be read: %s", one.message_id, error)
            message, options = None, {}
        held = Held(
            one.message_id, one.queue_name, one.lock_key, one.token, MessageProxy(message), options
        )
        self._hand.take_in(inbox, held)
        if message is None:
            self._settle(held, "rejected")
        elif not self._hand.hand_over(inbox, held):
            self._settle(held, "queued")

    def promote(self, session: Session) -> list[tuple[str, str]]:
        """Move what is due from the delay queues, if it is time to.

        Returns:
          The messages moved: (queue, id).
        """
        now = time.monotonic()
        if now < self.promote_at and not self._hand.has_new_delays:
            return []
        self._hand.has_new_delays = False
        self.promote_at = float("inf")
        queues = [i.queue_name for i in self._hand.open_inboxes() if i.is_delay_queue]
        if not queues:
            return []
        wait_ms, moved = session.promote(queues)
        if moved:
            self.promote_at = now  # There may be more than one batch.
        elif wait_ms is not None:
            self.promote_at = now + max(wait_ms, 1) / 1000
        return moved
