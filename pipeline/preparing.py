"""Makes the mail of what was read for a delivery, or tells why there is none."""

from __future__ import annotations

from .digest import make_digest
from .reading import Closing, Stack, Subject
from .rendering import Mail, render
from .settings import Settings


def prepare(
    settings: Settings, subject: Subject, stack: Stack | Closing, *, message_id: str
) -> Mail | Closing:
    """The mail of a delivery, or why there is none.

    Raises:
      rendering.InvalidAddress: When mail can't be addressed to its recipient.
    """
    if isinstance(stack, Closing):
        return stack
    digest = make_digest(
        stack.activities,
        entity=stack.entity,
        people=stack.people,
        omitted_count=max(subject.notification_count - len(stack.activities), 0),
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
