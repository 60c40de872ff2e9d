"""Reads what mails are made of: notifications, recipients and items, as they are now.

One delivery takes as many round trips as a few, so a sender reads some of its chunk at once, as far
as they fit into the budget of one. What was read is used within moments or read again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, groupby
from typing import Any

from .database import Connection, Cursor, boot_clock, query, transaction
from .digest import Activity, Entity, Notification, people_named, read
from .rendering import Recipient

#: What is read at once at the most: rows of a delivery, bytes of one row, bytes of all.
ROWS = 1000
ROW_BYTES = 256 * 1024
TOTAL_BYTES = 4 * 1024 * 1024

#: How many deliveries are read at once at the most.
MOST = 64

#: How long somebody else's lock on what is read is waited for, mostly a migration's, in ms.
LOCK_TIMEOUT = 10_000

#: What was read is as good as new for this long, in seconds.
FRESH = 0.25


@dataclass(frozen=True, slots=True)
class Subject:
    """What is known of a delivery before its content is read."""

    id: str
    receiver_id: str
    entity_name: str
    entity_identifier: str
    notification_count: int


@dataclass(frozen=True, slots=True)
class Closing:
    """A delivery that ends without a mail, and why."""

    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class Stack:
    """What a mail is made of."""

    recipient: Recipient
    entity: Entity
    activities: list[Activity]
    people: dict[str, str]
    read_at: datetime


def read_stack(cursor: Cursor, wanted: Subject) -> Stack | Closing:
    """Everything that a mail is made of, read within bounds, or why there is nothing to make."""
    return read_stacks(cursor, [wanted])[wanted.id]


def read_stacks(cursor: Cursor, wanted: Sequence[Subject]) -> dict[str, Stack | Closing]:
    """The stacks of these deliveries, by id: of the first, and of those after it that fit."""
    cursor.execute(
        query("delivery_content"),
        {
            "ids": [each.id for each in wanted],
            "receiver_ids": [each.receiver_id for each in wanted],
            "entity_names": [each.entity_name for each in wanted],
            "entity_identifiers": [each.entity_identifier for each in wanted],
        },
    )
    content = {row[0]: row[1:] for row in cursor.fetchall()}
    stacks: dict[str, Stack | Closing] = {}
    open_: list[Subject] = []
    for each in wanted:
        closing = _closing(each.receiver_id, content[each.id])
        if closing is None:
            open_.append(each)
        else:
            stacks[each.id] = closing
    rows = read_notifications(cursor, [each.id for each in open_])
    # Each is read once, for the names in it and for the mail.
    activities = {id_: [read(one) for one in some] for id_, some in rows.items()}
    named = people_named(one for some in activities.values() for one in some)
    people: dict[str, str] = {}
    if named:
        cursor.execute(query("people"), {"ids": sorted(named)})
        people = dict(cursor.fetchall())
    for each in open_:
        if each.id in activities:
            _, email, name, locale, time_zone, _, reference, title, url, read_at = content[each.id]
            stacks[each.id] = Stack(
                recipient=Recipient(each.receiver_id, email, name, locale, time_zone),
                entity=Entity(each.entity_name, each.entity_identifier, reference, title, url),
                activities=activities[each.id],
                people=people,
                read_at=read_at,
            )
    return stacks


class Ahead:
    """Reads chunk after chunk, some deliveries at a time: as many as are used while fresh.

    Parameters:
      connection: In autocommit mode, outside a transaction.
      took: Is told how many seconds reading took.
    """

    def __init__(
        self, connection: Connection, took: Callable[[float], None] = lambda _: None
    ) -> None:
        self.connection = connection
        self._took = took
        #: In the order in which they will be asked for.
        self.chunk: Sequence[Subject] = ()
        #: How many are read at once.
        self._size = 8
        self._read: dict[str, Stack | Closing] = {}
        self._read_at = 0.0

    def begin(self, chunk: Sequence[Subject]) -> None:
        """The next chunk. Whatever was read for an earlier one is forgotten: a delivery that is
        claimed again may have been given more.
        """
        self.chunk = chunk
        self._read = {}

    def stack(self, wanted: Subject) -> Stack | Closing:
        """The stack of one of the chunk, not older than `FRESH`."""
        is_fresh = boot_clock() - self._read_at < FRESH
        if wanted.id not in self._read or not is_fresh:
            self._size = min(self._size * 2, MOST) if is_fresh else max(self._size // 2, 1)
            self._read_at = boot_clock()
            try:
                self._read = self._read_from(wanted)
            finally:
                self._took(boot_clock() - self._read_at)
        return self._read.pop(wanted.id)

    def _read_from(self, first: Subject) -> dict[str, Stack | Closing]:
        place = next(i for i, each in enumerate(self.chunk) if each.id == first.id)
        some = few(self.chunk[place : place + self._size])
        if len(some) > 1:
            try:
                return read_at_once(self.connection, some)
            except Exception:
                if self.connection.closed:
                    raise
                # One of them can't be read: that must be the trouble of that one alone.
                self._size = 1
        return read_at_once(self.connection, [first])


def read_at_once(connection: Connection, wanted: Sequence[Subject]) -> dict[str, Stack | Closing]:
    """`read_stacks` in a transaction of its own, for its bounds on time: recipient and entity may
    be views of anything.
    """
    with transaction(connection, lock_timeout=LOCK_TIMEOUT) as cursor:
        cursor.execute(query("any_plan"))
        return read_stacks(cursor, wanted)


def few(subjects: Sequence[Subject]) -> list[Subject]:
    """The first, and those after it, as long as they have no more notifications than one may have.

    What is beyond the budget of bytes is read in vain; this keeps it from being much.
    """
    counts = accumulate(subject.notification_count for subject in subjects)
    return [
        subject
        for place, (subject, count) in enumerate(zip(subjects, counts, strict=True))
        if place == 0 or count <= ROWS
    ]


def _closing(receiver_id: str, content: tuple[Any, ...]) -> Closing | None:
    exists, email, _, _, _, active, *_ = content
    if not exists:
        return Closing("suppressed", f"no such recipient: {receiver_id}")
    if not active:
        return Closing("suppressed", f"recipient {receiver_id} is not active")
    if email is None or not email.strip():
        return Closing("suppressed", f"recipient {receiver_id} has no address")
    return None


def read_notifications(cursor: Cursor, ids: list[str]) -> dict[str, list[Notification]]:
    """The rows of these deliveries, by id, within the budgets of one."""
    if not ids:
        return {}
    cursor.execute(
        query("delivery_notifications"),
        {"ids": ids, "rows": ROWS, "row_bytes": ROW_BYTES, "total_bytes": TOTAL_BYTES},
    )
    return {
        id_: list(_notifications(row[1:] for row in rows))
        for id_, rows in groupby(cursor.fetchall(), key=lambda row: str(row[0]))
    }


def _notifications(rows: Iterable[tuple[Any, ...]]) -> Iterator[Notification]:
    for id_, data, triggered_by_id, created_at, oversized in rows:
        if id_ is None:
            continue
        decoded = None
        if data is not None:
            try:
                decoded = json.loads(data)
            except (RecursionError, ValueError):
                # Nested deeper, or with longer numbers, than Python takes: as good as too large.
                oversized = True
        yield Notification(
            id=id_,
            data=decoded,
            triggered_by_id=triggered_by_id,
            created_at=created_at,
            oversized=oversized,
        )
