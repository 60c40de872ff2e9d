"""What is left over goes on: time passes, and ordinary recovery and workers do their work.

The scheduler's jobs and the actors' code run here in the test's process, one after the other. A
sender or a stacker runs only when a message in the queue calls for it, so that mail which nobody
rings for is found to be stuck.
"""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta

from pipeline.database import connect, query, transaction
from pipeline.recovery import Recovery
from pipeline.scheduling import Schedule
from pipeline.sending import Sender
from pipeline.stacking import run_pass
from tests.support.installation import Installation

#: Rounds of ten minutes each after which everything has to be final.
ROUNDS = 40

LATER = timedelta(minutes=10)

FINAL = ("sent", "failed", "suppressed", "skipped", "cancelled")

_TIMES = {
    "delivery": ("lease_expires_at", "next_attempt_at"),
    "sender": ("lease_expires_at",),
    "relay": ("retry_at",),
    "doorbell": ("rung_at", "answered_at"),
}


class StuckError(AssertionError):
    """Something would wait for ever."""


def pass_time(installation: Installation, time: timedelta = LATER) -> None:
    """Every lease and every wait is so much nearer to its end."""
    for table, columns in _TIMES.items():
        changes = ", ".join(f"{column} = {column} - %(time)s" for column in columns)
        with installation.connection.cursor() as cursor:
            cursor.execute(f"UPDATE pipeline.{table} SET {changes}", {"time": time})


def is_over(installation: Installation) -> bool:
    """Whether every row is in a delivery, and every delivery final or held by policy."""
    ends = [*FINAL, *(["held"] if installation.settings.on_uncertain == "hold" else [])]
    return bool(
        installation.value(
            "SELECT NOT EXISTS (SELECT FROM pipeline.email_notification_log "
            "WHERE processed_at IS NULL) AND NOT EXISTS (SELECT FROM pipeline.delivery "
            "WHERE state <> ALL (%s))",
            (ends,),
        )
    )


def finish(installation: Installation) -> int:
    """Let time pass until everything is over.

    Returns:
      After how many rounds.

    Raises:
      StuckError: It never is.
    """
    for number in range(ROUNDS):
        if is_over(installation):
            return number
        pass_time(installation)
        schedule(installation)
        work(installation)
    raise StuckError(f"stuck after {ROUNDS} rounds: {installation.states()}")


def schedule(installation: Installation) -> None:
    """A scheduler's jobs, once each."""
    jobs = Schedule(installation.url, installation.settings, installation.doorbells)
    jobs.tick(installation.connection)
    Recovery(installation.connection, installation.settings, installation.doorbells).run()


def work(installation: Installation) -> None:
    """Answer all messages that are in the queue, as a worker does."""
    while True:
        called = installation.query(
            "UPDATE dramatiq.queue SET state = 'consumed' WHERE message_id = "
            "(SELECT message_id FROM dramatiq.queue WHERE state = 'queued' LIMIT 1) "
            "RETURNING message_id::text, message ->> 'actor_name'"
        )
        if not called:
            return
        message_id, actor = called[0]
        if actor == "pipeline.send":
            Sender(installation.url, installation.settings, installation.doorbells).answer(
                message_id
            )
        else:
            _answer_stacker(installation, message_id)
        installation.query(
            "UPDATE dramatiq.queue SET state = 'done' WHERE message_id = %s", (message_id,)
        )


def _answer_stacker(installation: Installation, message_id: str) -> None:
    with closing(connect(installation.url)) as connection:
        with transaction(connection) as cursor:
            installation.doorbells.answer(cursor, message_id)
            cursor.execute(query("ticks_owed"), {"schedule": "stack"})
            row = cursor.fetchone()
        slot = row and row[0]
        run_pass(
            connection, installation.settings, installation.doorbells, urgent_only=slot is None
        )
        with transaction(connection) as cursor:
            if slot is not None:
                cursor.execute(query("ticks_finish"), {"schedule": "stack", "slot": slot})
            installation.doorbells.over(cursor, message_id)
