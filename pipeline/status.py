"""Where everything stands: what waits, what is under way, who is there."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from psycopg2 import sql

from .database import Connection, Cursor, only_row, query, transaction
from .doorbells import QUEUE
from .outbox import QueueTable
from .presence import INTERVAL
from .settings import Settings
from .smtp import Relay
from .states import STATES

#: A worker or scheduler that was not seen for so long is not there.
GONE_AFTER = timedelta(seconds=3 * INTERVAL)


@dataclass(frozen=True, slots=True)
class Notifications:
    """Rows that wait to be stacked. `oldest_age` counts since the oldest was written."""

    pending: int
    urgent: int
    oldest_at: datetime | None
    oldest_age: timedelta | None


@dataclass(frozen=True, slots=True)
class Doorbell:
    """Calls for one actor that are under way."""

    actor: str
    waiting: int
    answering: int


@dataclass(frozen=True, slots=True)
class SenderPlace:
    """A sender at work."""

    slot: int
    worker: str
    started_at: datetime
    lease_expires_at: datetime


@dataclass(frozen=True, slots=True)
class RelayStatus:
    """A mail server. In trouble, `reason` and `smtp_code` tell what it last answered."""

    name: str
    is_configured: bool
    is_in_trouble: bool
    failure_count: int
    smtp_code: int | None
    reason: str | None
    retry_at: datetime | None
    updated_at: datetime | None


@dataclass(frozen=True, slots=True)
class ProcessSeen:
    """A worker or scheduler."""

    name: str
    started_at: datetime
    seen_at: datetime


@dataclass(frozen=True, slots=True)
class Status:
    """Everything, as of one moment by the database's clock.

    Attributes:
      due_age: For how long the delivery that has been due for longest waits for a sender.
      deliveries: How many in each state; every state is there.
      queue: Our messages in dramatiq-pg's table: `queued`, `consumed`, `rejected`.
      sender_limit: How many senders there may be at once.
      last_tick_at: Beginning of the latest slot that had a tick.
    """

    at: datetime
    notifications: Notifications
    deliveries: dict[str, int]
    due_age: timedelta | None
    queue_table: str
    queue: dict[str, int]
    doorbells: list[Doorbell]
    senders: list[SenderPlace]
    sender_limit: int
    relays: list[RelayStatus]
    schedulers: list[ProcessSeen]
    workers: list[ProcessSeen]
    last_tick_at: datetime | None
    last_tick_is_stacked: bool | None


def read_status(connection: Connection, settings: Settings) -> Status:
    """Read all of it.

    Parameters:
      connection: In autocommit mode.
      settings: Which relay, which queue, how many senders.

    Raises:
      psycopg2.Error: When the database is away, or not prepared.
    """
    table = QueueTable(settings.queue_schema, f"{settings.queue_prefix}queue")
    with transaction(connection) as cursor:
        # One snapshot for all, so that a delivery is not counted while it is on its way.
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        cursor.execute(query("status_notifications"))
        pending, urgent, oldest_at, at = only_row(cursor)
        cursor.execute(query("status_deliveries"))
        deliveries = dict.fromkeys(STATES, 0) | dict(cursor.fetchall())
        cursor.execute(query("status_due"))
        (due_at,) = only_row(cursor)
        cursor.execute(
            sql.SQL(query("status_queue")).format(queue=sql.Identifier(*table)),
            {"queue_name": QUEUE},
        )
        queue = dict.fromkeys(("queued", "consumed", "rejected"), 0) | dict(cursor.fetchall())
        cursor.execute(query("status_doorbells"))
        doorbells = [Doorbell(*row) for row in cursor.fetchall()]
        cursor.execute(query("status_senders"))
        senders = [SenderPlace(*row) for row in cursor.fetchall()]
        cursor.execute(query("status_ticks"))
        tick = cursor.fetchone() or (None, None)
        relays = _relays(cursor, Relay.from_url(settings.smtp_url).name)
        seen = _processes(cursor)
    return Status(
        at=at,
        notifications=Notifications(pending, urgent, oldest_at, oldest_at and at - oldest_at),
        deliveries=deliveries,
        due_age=due_at and at - due_at,
        queue_table=".".join(table),
        queue=queue,
        doorbells=doorbells,
        senders=senders,
        sender_limit=settings.senders,
        relays=relays,
        schedulers=seen.get("scheduler", []),
        workers=seen.get("worker", []),
        last_tick_at=tick[0],
        last_tick_is_stacked=tick[1],
    )


def _relays(cursor: Cursor, configured: str) -> list[RelayStatus]:
    """The configured relay first, whether it ever had trouble or not."""
    cursor.execute(query("status_relays"))
    relays = [
        RelayStatus(
            name=name,
            is_configured=name == configured,
            is_in_trouble=failure_count > 0,
            failure_count=failure_count,
            smtp_code=smtp_code,
            reason=reason,
            retry_at=retry_at if failure_count else None,
            updated_at=updated_at,
        )
        for name, failure_count, smtp_code, reason, retry_at, updated_at in cursor.fetchall()
    ]
    if not any(relay.is_configured for relay in relays):
        relays.append(RelayStatus(configured, True, False, 0, None, None, None, None))
    return sorted(relays, key=lambda relay: (not relay.is_configured, relay.name))


def _processes(cursor: Cursor) -> dict[str, list[ProcessSeen]]:
    cursor.execute(query("status_processes"), {"within": GONE_AFTER})
    seen: dict[str, list[ProcessSeen]] = {}
    for kind, name, started_at, seen_at in cursor.fetchall():
        seen.setdefault(kind, []).append(ProcessSeen(name, started_at, seen_at))
    return seen
