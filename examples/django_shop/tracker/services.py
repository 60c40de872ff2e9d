"""What the tracker does for its users, each in one transaction."""

from django.db import connection, transaction

from pipeline import enqueue, notify
from tracker.models import Ticket
from tracker.tasks import count_watchers


@transaction.atomic
def move(ticket_id: int, state: str, *, by: int) -> None:
    """Move a ticket and tell who watches it."""
    ticket = Ticket.objects.select_for_update().get(pk=ticket_id)
    before, ticket.state = ticket.state, state
    ticket.save(update_fields=["state"])
    with connection.cursor() as cursor:
        for watcher in ticket.watchers.exclude(pk=by):
            notify(
                cursor,
                receiver=str(watcher.pk),
                triggered_by=str(by),
                entity=("ticket", str(ticket.pk)),
                data={
                    "verb": "updated",
                    "field": "state",
                    "old_value": before,
                    "new_value": state,
                },
            )
        enqueue(cursor, count_watchers.message(ticket.pk))
