"""An installation in a test's own database: rows to write, and everything to look at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

from dramatiq_pg import PostgresBroker
from psycopg2.extras import Json

from pipeline import Settings
from pipeline.database import connect
from pipeline.doorbells import Doorbells
from pipeline.recovery import Recovery
from pipeline.sending import Sender
from pipeline.stacking import Pass, run_pass

#: Quick to give up, so that a test that goes wrong ends.
QUICK = Settings(
    mail_from="Tracker <tracker@shop.example>",
    connect_timeout=timedelta(seconds=2),
    command_timeout=timedelta(seconds=2),
    data_timeout=timedelta(seconds=5),
    reply_timeout=timedelta(seconds=5),
    lease=timedelta(seconds=5),
    retry_base=timedelta(milliseconds=50),
    relay_pause=timedelta(milliseconds=50),
    relay_pause_cap=timedelta(milliseconds=400),
)


class Installation:
    """One database with a pipeline, driven in the test's own process.

    Parameters:
      url: The database, with the schema applied.
      changes: Settings that differ from `QUICK`.
    """

    def __init__(self, url: str, **changes: Any) -> None:
        self.url = url
        self.settings = replace(QUICK, database_url=url, **changes)
        self.connection = connect(url, application_name="pipeline test")
        self.broker = PostgresBroker(url=url, results=False)
        self.doorbells = Doorbells(self.broker, senders=self.settings.senders)

    def close(self) -> None:
        self.connection.close()
        self.broker.close()
        self.broker.pool.closeall()

    def set(self, **changes: Any) -> None:
        """Change settings."""
        self.settings = replace(self.settings, **changes)
        self.doorbells = Doorbells(self.broker, senders=self.settings.senders)

    def query(self, sql: str, parameters: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows, if it has any."""
        with self.connection.cursor() as cursor:
            cursor.execute(sql, tuple(parameters) or None)
            return cursor.fetchall() if cursor.description else []

    def value(self, sql: str, parameters: Iterable[Any] = ()) -> Any:
        """The first column of the first row."""
        return self.query(sql, parameters)[0][0]

    def add_person(self, id_: str, **columns: Any) -> None:
        """A recipient, active and with an address unless told otherwise."""
        row = {
            "email": f"{id_}@people.example",
            "display_name": id_.title(),
            "time_zone": "UTC",
            "active": True,
            **columns,
        }
        self.query(
            "INSERT INTO pipeline.recipient (id, email, display_name, time_zone, active) "
            "VALUES (%s, %s, %s, %s, %s)",
            (id_, row["email"], row["display_name"], row["time_zone"], row["active"]),
        )

    def notify(
        self,
        receiver: str = "ann",
        entity: str = "17",
        *,
        field: str = "priority",
        old: str = "low",
        new: str = "high",
        urgent: bool = False,
        data: Any = None,
    ) -> str:
        """One notification, as an application writes it."""
        if data is None:
            data = {"verb": "updated", "field": field, "old_value": old, "new_value": new}
        return str(
            self.value(
                "INSERT INTO pipeline.email_notification_log "
                "(receiver_id, triggered_by_id, entity_name, entity_identifier, data, urgent) "
                "VALUES (%s, 'bob', 'issue', %s, %s, %s) RETURNING id::text",
                (receiver, entity, Json(data), urgent),
            )
        )

    def notify_many(self, receivers: int, *, items: int = 1, rows: int = 1) -> None:
        """So many people, each with so many items, each with so many rows; people are made too."""
        self.query(
            "INSERT INTO pipeline.recipient (id, email, display_name, time_zone) "
            "SELECT 'p' || n, 'p' || n || '@people.example', 'Person ' || n, 'UTC' "
            "FROM generate_series(1, %s) AS n ON CONFLICT DO NOTHING",
            (receivers,),
        )
        self.query(
            "INSERT INTO pipeline.email_notification_log "
            "(receiver_id, entity_name, entity_identifier, data) "
            "SELECT 'p' || n, 'issue', item::text, jsonb_build_object('verb', 'updated', "
            "'field', 'f' || change, 'old_value', 'old', 'new_value', 'new ' || change) "
            "FROM generate_series(1, %s) AS n, generate_series(1, %s) AS item, "
            "generate_series(1, %s) AS change",
            (receivers, items, rows),
        )

    def stack(self, **options: Any) -> Pass:
        """One stacking pass."""
        return run_pass(self.connection, self.settings, self.doorbells, **options)

    def send(self, **options: Any) -> dict[str, int]:
        """Be a sender until nothing waits."""
        return Sender(self.url, self.settings, self.doorbells, **options).answer()

    @contextmanager
    def senders(self, count: int) -> Iterator[list[Future[dict[str, int]]]]:
        """So many senders in threads of one process; the block is left when they are through."""
        sender = Sender(self.url, self.settings, self.doorbells)
        with ThreadPoolExecutor(count) as pool:
            yield [pool.submit(sender.answer) for _ in range(count)]

    @property
    def recovery(self) -> Recovery:
        return Recovery(self.connection, self.settings, self.doorbells)

    def states(self) -> dict[str, int]:
        """Deliveries by state."""
        return dict(self.query("SELECT state, count(*) FROM pipeline.delivery GROUP BY state"))

    def delivery(self) -> dict[str, Any]:
        """The only delivery."""
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT * FROM pipeline.delivery")
            rows = cursor.fetchall()
            assert len(rows) == 1, rows
            assert cursor.description is not None
            return dict(zip([column.name for column in cursor.description], rows[0], strict=True))

    def attempts(self) -> list[tuple[Any, ...]]:
        """Number, stage, code and outcome of all attempts."""
        return self.query(
            "SELECT attempt_number, stage, smtp_code, outcome FROM pipeline.delivery_attempt "
            "ORDER BY started_at, attempt_number"
        )

    def messages(self, state: str = "queued") -> int:
        """Dramatiq messages of ours in this state."""
        return int(
            self.value(
                "SELECT count(*) FROM dramatiq.queue WHERE state = %s::dramatiq.state", (state,)
            )
        )
