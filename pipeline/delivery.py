"""What may be done with a delivery: each verb is one statement or one short transaction.

A delivery is held by whoever has its attempt token. Every verb checks the token, so that a sender
whose lease was taken over can't move it on, and every verb is safe to be asked again, since a
commit may succeed although its answer is lost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from .database import LOCK_TIMEOUT, Connection, Cursor, Statement, query, transaction
from .reading import Subject
from .settlement import Settlement, columns

#: An id that comes before all others.
NOBODY = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True, slots=True)
class Claimed:
    """A delivery that this sender holds.

    Attributes:
      attempt_count: Attempts used up before this one.
      due_at: Since when it was due, in seconds of Unix time.
    """

    id: str
    token: str
    receiver_id: str
    entity_name: str
    entity_identifier: str
    message_id: str
    attempt_count: int
    uncertain_count: int
    notification_count: int
    created_at: datetime
    due_at: float

    @property
    def key(self) -> dict[str, Any]:
        """Parameters that name it and its holder."""
        return {"id": self.id, "token": self.token}

    @property
    def subject(self) -> Subject:
        """What it is about."""
        return Subject(
            self.id,
            self.receiver_id,
            self.entity_name,
            self.entity_identifier,
            self.notification_count,
        )


def claim(
    cursor: Cursor, *, limit: int, lease: timedelta, after: Claimed | None = None
) -> list[Claimed]:
    """Claim up to `limit` deliveries that are due, oldest due first.

    Parameters:
      after: Only what became due after this one.
    """
    cursor.execute(
        query("delivery_claim"),
        {
            "limit": limit,
            "lease": lease,
            "after_due": -math.inf if after is None else after.due_at,
            "after_id": NOBODY if after is None else after.id,
        },
    )
    return [Claimed(*row) for row in cursor.fetchall()]


def begin(cursor: Cursor, claimed: Claimed, *, worker: str, lease: timedelta) -> bool:
    """Begin the attempt: it counts from here on.

    Returns:
      Whether the delivery is still this sender's.
    """
    cursor.execute(*beginning([claimed], workers=[worker], lease=lease))
    return cursor.fetchone() is not None


def beginning(claims: Sequence[Claimed], *, workers: Sequence[str], lease: timedelta) -> Statement:
    """The statement that begins attempts: it has a row, the id, for each that is still ours."""
    parameters = {**_held(claims), "workers": list(workers), "lease": lease}
    return query("delivery_begin"), parameters


def mark_transmitting(cursor: Cursor, claimed: Claimed, *, lease: timedelta) -> bool:
    """Set the marker that goes before the final dot.

    Returns:
      Whether the dot may be sent once this transaction has committed.
    """
    cursor.execute(*marking([claimed], lease=lease))
    return cursor.fetchone() is not None


def marking(claims: Sequence[Claimed], *, lease: timedelta) -> Statement:
    """The statement that sets markers: it has a row, the id, for each dot that may be sent."""
    return query("delivery_mark"), {**_held(claims), "lease": lease}


def settle(cursor: Cursor, claimed: Claimed, settlement: Settlement) -> bool:
    """Write the outcome of an attempt to its history, and to the delivery if it is still ours.

    Returns:
      Whether the delivery was settled by it.
    """
    if settlement.waits:
        _make_room(cursor, claimed)
    cursor.execute(*settling([claimed], [settlement]))
    row = cursor.fetchone()
    return row is not None and bool(row[1])


def settling(claims: Sequence[Claimed], settlements: Sequence[Settlement]) -> Statement:
    """The statement of `settle` for several, which is all of it for those that need not wait again.

    It has a row for each attempt: the delivery's id, and whether that was settled.
    """
    return query("delivery_settle"), {**_held(claims), **columns(settlements)}


def _held(claims: Sequence[Claimed]) -> dict[str, list[str]]:
    return {"ids": [each.id for each in claims], "tokens": [each.token for each in claims]}


def closing(claimed: Claimed, *, state: str, reason: str) -> Statement:
    """The statement that ends a delivery that needs no mail."""
    return query("delivery_close"), {**claimed.key, "state": state, "reason": reason}


def release(connection: Connection, claimed: Claimed) -> None:
    """Put back a delivery whose attempt has not begun."""
    with transaction(connection, lock_timeout=LOCK_TIMEOUT) as cursor:
        _make_room(cursor, claimed)
        cursor.execute(query("delivery_release"), claimed.key)


def silent(cursor: Cursor, *, limit: int) -> list[Claimed]:
    """Deliveries whose sender fell silent before the marker."""
    cursor.execute(query("recover_sending"), {"limit": limit})
    return [Claimed(*row) for row in cursor.fetchall()]


def give_up(
    connection: Connection, claimed: Claimed, *, max_attempts: int, delay: timedelta
) -> bool:
    """Take a delivery from a sender that fell silent before the marker.

    Returns:
      Whether it was taken: its sender may have spoken meanwhile.
    """
    with transaction(connection) as cursor:
        if claimed.attempt_count < max_attempts:
            _make_room(cursor, claimed, silent_only=True)
        cursor.execute(
            query("delivery_give_up"),
            {**claimed.key, "max_attempts": max_attempts, "delay": delay},
        )
        row = cursor.fetchone()
        return row is not None and bool(row[0])


def _make_room(cursor: Cursor, claimed: Claimed, *, silent_only: bool = False) -> None:
    """Before a delivery waits again: take in what its stack was given meanwhile."""
    make_room(
        cursor,
        {
            **claimed.key,
            "receiver_id": claimed.receiver_id,
            "entity_name": claimed.entity_name,
            "entity_identifier": claimed.entity_identifier,
        },
        states=["sending", "transmitting"],
        silent_only=silent_only,
    )


def make_room(
    cursor: Cursor, row: dict[str, Any], *, states: list[str], silent_only: bool = False
) -> None:
    """Lock a delivery's stack, and let it take in another one of the stack that waits.

    Must come before the statement that makes a delivery wait, in the same transaction.

    Parameters:
      row: `id`, `token`, `receiver_id`, `entity_name`, `entity_identifier` of the delivery.
      states: It takes in others only when it is in one of these.
      silent_only: And only when its lease is over.
    """
    cursor.execute(query("stack_lock"), row)
    cursor.execute(query("delivery_absorb"), {**row, "states": states, "silent_only": silent_only})
