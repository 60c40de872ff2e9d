"""`python manage.py make_people`"""

from django.core.management.base import BaseCommand

from tracker.models import Person, Ticket


class Command(BaseCommand):
    help = "Makes three people who watch one ticket."

    def handle(self, **options: object) -> None:
        people = [
            Person.objects.create(
                name=name, email=f"{name[:3].lower()}@shop.example", time_zone=zone
            )
            for name, zone in (
                ("Ann Arbor", "America/Detroit"),
                ("Bob Berg", "Europe/Oslo"),
                ("Cid Court", "Asia/Kolkata"),
            )
        ]
        ticket = Ticket.objects.create(subject="The till does not open")
        ticket.watchers.set(people)
        self.stdout.write(f"Ticket {ticket.pk} is watched by {[person.pk for person in people]}.")
