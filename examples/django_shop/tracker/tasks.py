"""The workers: `dramatiq tracker.tasks` runs the tracker's jobs and the pipeline's."""

import os

import django
import dramatiq
from django.conf import settings
from django.db import close_old_connections
from dramatiq.middleware import AgeLimit, Middleware, Retries, TimeLimit
from dramatiq_pg import PostgresBroker

from pipeline import Pipeline

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tracker.settings")
django.setup()


class ClosesConnections(Middleware):
    """Django's connections don't outlive the job of a thread, as they don't outlive a request."""

    def before_process_message(self, broker, message):
        close_old_connections()

    def after_process_message(self, broker, message, *, result=None, exception=None):
        close_old_connections()


broker = PostgresBroker(
    # 4 connections for each of the two queues, one for each of the 8 threads, and some to spare.
    url={
        "dbname": settings.DATABASES["default"]["NAME"],
        "user": settings.DATABASES["default"]["USER"],
        "password": settings.DATABASES["default"]["PASSWORD"],
        "host": settings.DATABASES["default"]["HOST"],
        "port": settings.DATABASES["default"]["PORT"],
        "minconn": 4,
        "maxconn": 24,
    },
    results=False,
    middleware=[AgeLimit(), TimeLimit(), Retries(), ClosesConnections()],
)
dramatiq.set_broker(broker)

pipeline = Pipeline(broker)


@dramatiq.actor
def count_watchers(ticket_id: int) -> None:
    """A job of the tracker's own."""
    from tracker.models import Ticket

    ticket = Ticket.objects.get(pk=ticket_id)
    Ticket.objects.filter(pk=ticket_id).update(watcher_count=ticket.watchers.count())
