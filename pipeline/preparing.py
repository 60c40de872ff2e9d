"""Reads a delivery's notifications and recipient as they are now, and makes the mail of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime

from .database import Connection, Cursor, only_row, query, transaction
from .digest import Entity, Notification, make_digest, people_named
from .rendering import Mail, Recipient, render
from .settings import Settings

#: What is read of one delivery at the most: rows, bytes of one row, bytes of all.
ROWS = 1000
ROW_BYTES = 256 * 1024
TOTAL_BYTES = 4 * 1024 * 1024


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
    notifications: list[Notification]
    people: dict[str, str]
    read_at: datetime


def prepare(
    connection: Connection,
    settings: Settings,
    *,
    delivery_id: str,
    receiver_id: str,
    entity_name: str,
    entity_identifier: str,
    message_id: str,
    notification_count: int,
) -> Mail | Closing:
    """The mail of a delivery, or why there is none.

    Raises:
      rendering.InvalidAddress: When mail can't be addressed to its recipient.
    """
    # A transaction for its bounds on time: recipient and entity may be views of anything.
    with transaction(connection) as cursor:
        stack = read_stack(
            cursor,
            delivery_id=delivery_id,
            receiver_id=receiver_id,
            entity_name=entity_name,
            entity_identifier=entity_identifier,
        )
    if isinstance(stack, Closing):
        return stack
    digest = make_digest(
        stack.notifications,
        entity=stack.entity,
        people=stack.people,
        omitted_count=max(notification_count - len(stack.notifications), 0),
        base_url=settings.base_url,
        items_shown=settings.items_shown,
    )
    if digest.is_empty:
        return Closing("skipped", "nothing left to say: what happened was undone, or is gone")
    return render(
        digest,
        stack.recipient,
        mail_from=settings.mail_from,
        message_id=message_id,
        date=stack.read_at,
    )


def read_stack(
    cursor: Cursor,
    *,
    delivery_id: str,
    receiver_id: str,
    entity_name: str,
    entity_identifier: str,
) -> Stack | Closing:
    """Everything that a mail is made of, read within bounds, or why there is nothing to make."""
    cursor.execute(
        query("delivery_content"),
        {
            "receiver_id": receiver_id,
            "entity_name": entity_name,
            "entity_identifier": entity_identifier,
        },
    )
    row = only_row(cursor)
    exists, email, display_name, locale, time_zone, active, reference, title, url, read_at = row
    if not exists:
        return Closing("suppressed", f"no such recipient: {receiver_id}")
    if not active:
        return Closing("suppressed", f"recipient {receiver_id} is not active")
    if email is None or not email.strip():
        return Closing("suppressed", f"recipient {receiver_id} has no address")
    cursor.execute(
        query("delivery_notifications"),
        {
            "delivery_id": delivery_id,
            "rows": ROWS,
            "row_bytes": ROW_BYTES,
            "total_bytes": TOTAL_BYTES,
        },
    )
    notifications = [_notification(*row) for row in cursor.fetchall()]
    people: dict[str, str] = {}
    named = people_named(notifications)
    if named:
        cursor.execute(query("people"), {"ids": sorted(named)})
        people = dict(cursor.fetchall())
    return Stack(
        recipient=Recipient(receiver_id, email, display_name, locale, time_zone),
        entity=Entity(entity_name, entity_identifier, reference, title, url),
        notifications=notifications,
        people=people,
        read_at=read_at,
    )


def _notification(
    id_: str,
    data: str | None,
    triggered_by_id: str | None,
    created_at: datetime,
    oversized: bool,
) -> Notification:
    decoded = None
    if data is not None:
        try:
            decoded = json.loads(data)
        except (RecursionError, ValueError):
            # Nested deeper, or with longer numbers, than Python takes: as good as too large.
            oversized = True
    return Notification(
        id=id_,
        data=decoded,
        triggered_by_id=triggered_by_id,
        created_at=created_at,
        oversized=oversized,
    )
