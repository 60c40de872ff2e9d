"""Finding messages whose worker is gone."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable

from pipeline.broker.hand import Hand
from pipeline.broker.session import Session, TakenUp

logger = logging.getLogger(__name__)

#: Seconds after a reconnection before the first look: if it was Postgres that went away, the others
#: are just coming back for what is theirs.
TRUCE = 2.0


class Recovery:
    """Looks now and then for messages that are `consumed` and locked by nobody.

    One that is seen so twice, a second apart, is taken up: that leaves a process whose session was
    cut the time to come back for its own.

    Parameters:
      hand: What this process has in hand itself.
      every: Seconds between two looks.
      limit: How often a message may be taken up before it is rejected.
      on_rejected: Told of each message that was rejected for that.

    Attributes:
      look_at: When to look next (monotonic).
    """

    def __init__(
        self, hand: Hand, *, every: float, limit: int, on_rejected: Callable[[TakenUp], None]
    ) -> None:
        self._hand = hand
        self._every = every
        self._limit = limit
        self._on_rejected = on_rejected
        self._seen: dict[str, int] = {}
        self._has_begun = False
        self.look_at = 0.0

    def restart(self) -> None:
        """Forget what was seen: there is a new session."""
        self._seen.clear()
        self.look_at = time.monotonic() + TRUCE if self._has_begun else 0.0
        self._has_begun = True

    def look(self, session: Session) -> list[tuple[str, str]]:
        """Look, if it is time to, and take up what was seen the last time already.

        Returns:
          The messages that were put back into their queues: (queue, id).
        """
        started = time.monotonic()
        queues = [inbox.queue_name for inbox in self._hand.open_inboxes()]
        if started < self.look_at or not queues:
            return []
        seen = session.look(queues, list(self._hand.held))
        twice = {key: token for key, token in seen.items() if self._seen.get(key) == token}
        self._seen = seen
        # A look that is slow, over many dead rows, must not become the main thing done.
        took = time.monotonic() - started
        self.look_at = started + max(self._every * random.uniform(0.75, 1.0), 20 * took)
        if not twice:
            return []
        return self._report(session.take_up(twice, self._limit))

    def _report(self, taken: list[TakenUp]) -> list[tuple[str, str]]:
        put_back = []
        for one in taken:
            if one.state == "rejected":
                logger.error(
                    "rejected message %s of queue %s: its worker died %d times while it had it",
                    one.message_id,
                    one.queue_name,
                    one.takeup_count,
                )
                self._on_rejected(one)
            else:
                logger.warning(
                    "took up message %s of queue %s from a worker that is gone (%d of %d times)",
                    one.message_id,
                    one.queue_name,
                    one.takeup_count,
                    self._limit,
                )
                put_back.append((one.queue_name, one.message_id))
        return put_back
