"""Deliveries as people look at them: lists, and one with its whole history and its mail."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .database import Connection, Cursor, query, transaction
from .preparing import prepare
from .reading import Closing, Subject, read_stack
from .rendering import InvalidAddress, Mail
from .settings import Settings

#: Notifications shown of one delivery, and bytes of data shown of one of them.
ROWS = 200
ROW_BYTES = 64 * 1024

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class History:
    """One delivery.

    Attributes:
      delivery: Its row, with what is known of its recipient and item.
      attempts: Each one made, oldest first.
      notifications: The newest ones in it, oldest first, with their data decoded.
      mail: The mail as it would be sent now; None when there would be none.
      no_mail: Why there would be none.
    """

    delivery: Record
    attempts: list[Record]
    notifications: list[Record]
    mail: Mail | None
    no_mail: str | None


def list_deliveries(
    connection: Connection,
    *,
    states: Sequence[str] = (),
    receiver: str | None = None,
    limit: int = 50,
) -> list[Record]:
    """Deliveries, those first whose state changed last.

    Parameters:
      states: Only in these; all if empty.
      receiver: Only this receiver's.
    """
    with transaction(connection) as cursor:
        cursor.execute(
            query("deliveries_list"),
            {"states": list(states) or None, "receiver": receiver, "limit": limit},
        )
        return _records(cursor)


def read_history(connection: Connection, settings: Settings, id_: str) -> History | None:
    """Everything about a delivery, or None if there is no such one.

    Parameters:
      connection: In autocommit mode.
      id_: A UUID.
    """
    with transaction(connection) as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        cursor.execute(query("delivery_show"), {"id": id_})
        found = _records(cursor)
        if not found:
            return None
        cursor.execute(query("delivery_history"), {"id": id_})
        attempts = _records(cursor)
        cursor.execute(query("delivery_rows"), {"id": id_, "limit": ROWS, "bytes": ROW_BYTES})
        notifications = _records(cursor)
    for notification in notifications:
        notification["data"] = _decoded(notification["data"])
    mail, no_mail = _mail(connection, settings, found[0])
    return History(found[0], attempts, notifications, mail, no_mail)


def _mail(
    connection: Connection, settings: Settings, row: Record
) -> tuple[Mail | None, str | None]:
    try:
        subject = Subject(
            row["id"],
            row["receiver_id"],
            row["entity_name"],
            row["entity_identifier"],
            row["notification_count"],
        )
        with transaction(connection) as cursor:
            stack = read_stack(cursor, subject)
        made = prepare(settings, subject, stack, message_id=row["message_id"])
    except InvalidAddress as error:
        return None, f"it would fail: {error}"
    except Exception as error:  # noqa: BLE001 - a mail that can't be made is what one looks for
        return None, f"it can't be made: {type(error).__name__}: {error}"
    if isinstance(made, Closing):
        return None, f"it would be {made.state}: {made.reason}"
    return made, None


def _decoded(text: str | None) -> Any:
    """Data as JSON; a text in its place where it is too large, or more than Python takes."""
    if text is None:
        return "(too large to show)"
    try:
        return json.loads(text)
    except (RecursionError, ValueError):
        return "(too deep to show)"


def _records(cursor: Cursor) -> list[Record]:
    assert cursor.description is not None
    names = [column.name for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
