"""What became of the demo's notifications: was any lost, did any come twice?

Told by both ends: by the ids that were written, and by the mails that the inbox received.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from psycopg2.extensions import connection as Connection

from pipeline.database import query, transaction
from pipeline.states import FINAL_STATES

if TYPE_CHECKING:
    from pipeline.inbox import Inbox

#: Final states in which a notification is known to need no mail.
NO_MAIL_NEEDED = ("suppressed", "skipped")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The demo's result.

    Attributes:
      notifications: Rows that were written.
      claimed: Those that are in a delivery.
      deliveries: How many in each state.
      mails_received: By the inbox.
      duplicate_message_ids: Message-IDs that came more than once.
      lost: Notifications that reached nobody although they should have: in no delivery, in one that
        is not final or failed, or in one that was sent and is not in the inbox.
      doubled: Mails too many: repeated ones, and those that belong to no sent delivery.
      seconds: From the first row to the last final state.
      in_time: Every notification was final before the time was up.
    """

    notifications: int
    claimed: int
    deliveries: dict[str, int]
    mails_received: int
    duplicate_message_ids: int
    lost: int
    doubled: int
    seconds: float
    in_time: bool

    @property
    def is_good(self) -> bool:
        """Nothing was lost and nothing came twice."""
        return not (self.lost or self.doubled or self.duplicate_message_ids)


def read_outcome(
    connection: Connection, inbox: Inbox, ids: Sequence[str], *, seconds: float, in_time: bool
) -> Outcome:
    """Compare what was written with what came out.

    Parameters:
      inbox: Which has kept every mail.
      ids: Of the notifications.
      seconds, in_time: As in the outcome.
    """
    with transaction(connection) as cursor:
        cursor.execute(query("demo_notifications_end"), {"ids": list(ids)})
        ended: Counter[tuple[str | None, str | None]] = Counter()
        for _, state, delivery_id in cursor.fetchall():
            ended[state, delivery_id] += 1
        cursor.execute(query("demo_progress"))
        counted = cursor.fetchall()
        cursor.execute(query("demo_sent"))
        sent = dict(cursor.fetchall())
    received = Counter(mail.message_id or "" for mail in inbox.messages())
    missing = {id_ for message_id, id_ in sent.items() if message_id not in received}
    lost = sum(
        number
        for (state, delivery_id), number in ended.items()
        if (state != "sent" and state not in NO_MAIL_NEEDED) or delivery_id in missing
    )
    unknown = sum(number for message_id, number in received.items() if message_id not in sent)
    repeated = inbox.duplicate_ids()
    return Outcome(
        notifications=len(ids),
        claimed=sum(number for (state, _), number in ended.items() if state is not None),
        deliveries={state: number for state, number, _ in counted},
        mails_received=inbox.message_count,
        duplicate_message_ids=len(repeated),
        lost=lost,
        doubled=unknown + sum(times - 1 for times in repeated.values()),
        seconds=round(seconds, 3),
        in_time=in_time,
    )


def read_progress(connection: Connection) -> tuple[int, dict[str, int]]:
    """How many notifications are in deliveries that are final, and the deliveries by state."""
    with transaction(connection) as cursor:
        cursor.execute(query("demo_progress"))
        counted = cursor.fetchall()
    finished = sum(stacked for state, _, stacked in counted if state in FINAL_STATES)
    return finished, {state: number for state, number, _ in counted}
