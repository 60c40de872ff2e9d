"""What an operator may do with a delivery: retry it, release it, cancel it.

Each is one transaction a delivery, which looks at the state under a lock: what is being sent at
this moment, or was sent, is refused with a reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from . import delivery
from .database import Connection, Cursor, only_row, query, transaction
from .doorbells import Doorbells
from .relay_state import RelayState
from .settings import Settings
from .states import CANCELLED, RELEASED, RETRIED

#: Rows that one look for deliveries returns.
PAGE = 500


@dataclass(frozen=True, slots=True)
class Operation:
    """What became of a delivery that an operator wanted something of.

    Attributes:
      was: Its state before, None when there is no such delivery.
      state: Its state now.
      refusal: Why nothing was done, None when it was.
    """

    id: str
    was: str | None
    state: str | None
    refusal: str | None = None

    @property
    def is_done(self) -> bool:
        """Whether anything was changed."""
        return self.refusal is None


class Operations:
    """An operator at one installation.

    Parameters:
      connection: In autocommit mode.
      settings: The age limit, and the relay.
      doorbells: To call a sender in the same transaction.
    """

    def __init__(self, connection: Connection, settings: Settings, doorbells: Doorbells) -> None:
        self.connection = connection
        self.settings = settings
        self.doorbells = doorbells

    def retry(self, id_: str) -> Operation:
        """Send what has ended without a mail, or waits for another try: now, as if it were new."""
        return self._requeue(id_, "retry", "retried", RETRIED)

    def release(self, id_: str) -> Operation:
        """Send what is held because it may have been received already, under its Message-ID."""
        return self._requeue(id_, "release", "released", RELEASED)

    def cancel(self, id_: str) -> Operation:
        """Give up what has not been sent."""
        with transaction(self.connection) as cursor:
            row, refused = self._take(cursor, id_, "cancel", CANCELLED)
            if refused is not None:
                return refused
            cursor.execute(query("operation_cancel"), {"id": id_})
        return Operation(id_, row["state"], "cancelled")

    def _requeue(self, id_: str, verb: str, past: str, states: Sequence[str]) -> Operation:
        with transaction(self.connection) as cursor:
            row, refused = self._take(cursor, id_, verb, states)
            if refused is not None:
                return refused
            # A waiting delivery that its stack was given meanwhile is taken in: one mail for both.
            delivery.make_room(cursor, row, states=list(states))
            cursor.execute(
                query("operation_requeue"),
                {"id": id_, "verb": past, "max_age": self.settings.max_age},
            )
            relay = RelayState.of(self.settings)
            self.doorbells.ring_senders(cursor, relay.useful_senders(cursor))
        return Operation(id_, row["state"], "queued")

    def _take(
        self, cursor: Cursor, id_: str, verb: str, states: Sequence[str]
    ) -> tuple[dict[str, Any], Operation | None]:
        """The delivery under a lock, or why it can't be had."""
        cursor.execute(query("operation_stack"), {"id": id_})
        stack = cursor.fetchone()
        if stack is None:
            return {}, Operation(id_, None, None, "there is no such delivery, or not any more")
        names = ("receiver_id", "entity_name", "entity_identifier")
        # In this order everywhere: the stack, then the row.
        cursor.execute(query("stack_lock"), dict(zip(names, stack, strict=True)))
        cursor.execute(query("operation_read"), {"id": id_})
        found = cursor.fetchone()
        if found is None:
            return {}, Operation(id_, None, None, "there is no such delivery any more")
        assert cursor.description is not None
        row = dict(zip((column.name for column in cursor.description), found, strict=True))
        state = row["state"]
        if state not in states:
            return row, Operation(id_, state, state, _refusal(verb, row))
        if verb == "retry" and not row["notification_count"]:
            return row, Operation(id_, state, state, f"it is empty: {row['reason']}")
        return row, None

    def find(
        self, states: Sequence[str], *, receiver: str | None = None, limit: int | None = None
    ) -> Iterator[str]:
        """Ids of deliveries in these states, those first that have been in theirs for longest.

        Parameters:
          receiver: Only this receiver's.
          limit: At the most so many; None for all.
        """
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT now()")
            (until,) = only_row(cursor)
        after, after_id = datetime.min.replace(tzinfo=UTC), "00000000-0000-0000-0000-000000000000"
        left = limit
        while left is None or left > 0:
            with self.connection.cursor() as cursor:
                cursor.execute(
                    query("operation_find"),
                    {
                        "states": list(states),
                        "receiver": receiver,
                        "until": until,
                        "after": after,
                        "after_id": after_id,
                        "limit": PAGE if left is None else min(left, PAGE),
                    },
                )
                page = cursor.fetchall()
            if not page:
                return
            for after_id, after in page:  # noqa: B007 - the last one is where the next page begins
                yield after_id
            left = None if left is None else left - len(page)


def _refusal(verb: str, row: dict[str, Any]) -> str:
    """Why a delivery in this state is left as it is, and what can be done instead."""
    state = row["state"]
    if state in ("sending", "transmitting"):
        return "it is being sent at this moment: wait for how that ends"
    if state == "sent":
        return f"it was sent at {row['sent_at'].astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    if state == "queued":
        return "it is queued, and sent as soon as a sender is free"
    if state == "uncertain":
        return "it may have been received: what PIPELINE_ON_UNCERTAIN says is done within seconds"
    if state == "held":
        return "it is held, since it may have been received: release it to send it again"
    if state == "deferred":
        return "it is deferred and not held: retry it to send it now"
    if verb == "cancel":
        return f"it has ended already: {state}"
    return f"it is {state} and not held: retry it"
