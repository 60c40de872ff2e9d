"""`python manage.py move 1 Done --by 2`"""

from django.core.management.base import BaseCommand, CommandParser

from tracker.services import move


class Command(BaseCommand):
    help = "Moves a ticket to another state."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("ticket", type=int)
        parser.add_argument("state")
        parser.add_argument("--by", type=int, required=True)

    def handle(self, *, ticket: int, state: str, by: int, **options: object) -> None:
        move(ticket, state, by=by)
        self.stdout.write(f"Ticket {ticket} is {state}.")
