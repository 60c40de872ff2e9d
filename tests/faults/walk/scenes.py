"""What is in the database, and what the SMTP server is told, before an operation runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipeline import delivery
from pipeline.database import query, transaction
from pipeline.delivery import Claimed
from tests.support.installation import Installation
from tests.support.smtp_server import Rule


@dataclass(frozen=True)
class Scene:
    """Parameters:
    prepare: Writes it.
    rules: Makes the server's rules; they are used up as it goes.
    """

    prepare: Callable[[Installation], None]
    rules: Callable[[], Sequence[Rule]] = lambda: ()


def row(installation: Installation, receiver: str, count: int = 1) -> None:
    """Rows of a receiver's item 1, each with a text of its own."""
    for _ in range(count):
        number = installation.value("SELECT count(*) FROM pipeline.email_notification_log")
        installation.notify(receiver, "1", field=f"field {number}", new=f"news {number} of it")


def stack_in_order(installation: Installation) -> None:
    """The stacks of all that waits, due one after the other: each walk goes the same way."""
    installation.stack()
    installation.query(
        "UPDATE pipeline.delivery SET next_attempt_at = now() - interval '1 minute' "
        "+ interval '1 second' * substr(receiver_id, 2)::int"
    )


def people(installation: Installation) -> None:
    for name in ("p1", "p2", "p3", "p4", "p5"):
        installation.add_person(name, active=name != "p4")


def rows(installation: Installation) -> None:
    """One delivery waits already and gets another row; two chunks of stacks, and one in parts."""
    people(installation)
    row(installation, "p1")
    installation.stack()
    for name, count in (("p1", 1), ("p2", 2), ("p3", 1), ("p5", 5)):
        row(installation, name, count)


def ticked(installation: Installation) -> None:
    rows(installation)
    with transaction(installation.connection) as cursor:
        cursor.execute(query("tick"), {"schedule": "stack", "every": installation.settings.lease})
        installation.doorbells.ring_stacker(cursor)


def mixed(installation: Installation) -> None:
    """One is taken, one greylisted, one refused, one suppressed, and one loses its reply."""
    people(installation)
    for name in ("p1", "p2", "p3", "p4", "p5"):
        row(installation, name, 2)
    stack_in_order(installation)


def mixed_rules() -> Sequence[Rule]:
    return (
        Rule("rcpt", recipient="p2@people.example", reply="451 4.7.1 Greylisted", times=1),
        Rule("rcpt", recipient="p3@people.example", reply="550 5.1.1 No such user"),
        Rule("reply", recipient="p5@people.example", do="close", times=1),
    )


def trial(installation: Installation) -> None:
    """The relay was in trouble and may be tried; three mails wait for it."""
    people(installation)
    for name in ("p1", "p2", "p3"):
        row(installation, name)
    stack_in_order(installation)
    installation.query(
        "INSERT INTO pipeline.relay (name, failure_count, retry_at) VALUES (%s, 2, now())",
        (installation.settings.smtp_url.partition("//")[2],),
    )


def overtaken(installation: Installation) -> None:
    """Three stacks wait, and each of them has a row that comes later."""
    people(installation)
    for name in ("p1", "p2", "p3"):
        row(installation, name)
    stack_in_order(installation)
    # As if they had been taken at the moment when the new rows were stacked: see `overtaken`.
    for name in ("p1", "p2", "p3"):
        row(installation, name)


def claim(installation: Installation, receiver: str) -> Claimed:
    """A sender that will never speak again has begun with this receiver's delivery."""
    installation.query(
        "UPDATE pipeline.delivery SET next_attempt_at = now() + "
        "CASE WHEN receiver_id = %s THEN interval '0' ELSE interval '1 hour' END "
        "WHERE state = 'queued'",
        (receiver,),
    )
    with transaction(installation.connection) as cursor:
        (claimed,) = delivery.claim(cursor, limit=1, lease=installation.settings.lease)
        delivery.begin(cursor, claimed, worker="dead", lease=installation.settings.lease)
    return claimed


def stuck(installation: Installation) -> None:
    """One of each: silent before the marker (its stack has another delivery by now), silent after
    it, uncertain, deferred and due, deferred and too old, queued without a doorbell."""
    people(installation)
    installation.add_person("p6")
    for name in ("p1", "p2", "p3", "p4", "p5", "p6"):
        row(installation, name)
    installation.stack()
    claim(installation, "p1")
    for name in ("p2", "p3"):
        marked = claim(installation, name)
        with transaction(installation.connection) as cursor:
            delivery.mark_transmitting(cursor, marked, lease=installation.settings.lease)
    installation.query(
        "UPDATE pipeline.delivery_attempt SET outcome = 'uncertain', finished_at = now() "
        "FROM pipeline.delivery WHERE id = delivery_id AND receiver_id = 'p3'"
    )
    installation.query(
        "UPDATE pipeline.delivery SET state = 'uncertain', uncertain_count = 1, "
        "reason = 'may have been received', lease_expires_at = NULL WHERE receiver_id = 'p3'"
    )
    installation.query(
        "UPDATE pipeline.delivery SET lease_expires_at = now() WHERE lease_expires_at > now()"
    )
    installation.query(
        "UPDATE pipeline.delivery SET state = 'deferred', next_attempt_at = now(), "
        "reason = 'later', expires_at = CASE WHEN receiver_id = 'p5' THEN now() "
        "ELSE expires_at END WHERE receiver_id IN ('p4', 'p5')"
    )
    installation.query(
        "UPDATE pipeline.delivery SET next_attempt_at = now() WHERE state = 'queued'"
    )
    row(installation, "p1")
    installation.stack()
    installation.query("DELETE FROM dramatiq.queue")


SCENES = {
    "nothing": Scene(lambda _: None),
    "people": Scene(people),
    "rows": Scene(rows),
    "ticked": Scene(ticked),
    "mixed": Scene(mixed, mixed_rules),
    "trial": Scene(trial, lambda: (Rule("mail", reply="421 4.3.2 Not now", skip=1, times=1),)),
    "overtaken": Scene(
        overtaken,
        lambda: (
            Rule("rcpt", recipient="p1@people.example", reply="451 4.7.1 Greylisted", times=1),
        ),
    ),
    "stuck": Scene(stuck),
}
