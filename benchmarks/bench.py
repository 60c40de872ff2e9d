"""What every figure stands on: a Postgres with default settings, databases, rows to stack."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dramatiq_pg import PostgresBroker

from pipeline import Settings
from pipeline.database import Connection, connect, init, transaction
from pipeline.doorbells import Doorbells
from pipeline.embedded import EmbeddedPostgres
from pipeline.stacking import Pass, run_pass

#: Rows of a stack, where nothing else is said.
ROWS_PER_STACK = 5

#: One row's data: a change of state as a tracker writes it, about 450 bytes.
DATA = """jsonb_build_object(
    'issue', jsonb_build_object('id', md5(n::text), 'name', 'Sign-in fails for item ' || n,
        'identifier', 'WEB', 'sequence_id', n, 'state_name', 'Todo', 'state_group', 'unstarted'),
    'issue_activity', jsonb_build_object('id', md5((n + 1)::text), 'verb', 'updated',
        'field', (ARRAY['state', 'priority', 'labels', 'name', 'target_date'])
            [1 + (n / %(stacks)s) %% 5],
        'actor', 'None', 'old_value', 'old ' || n %% 7, 'new_value', 'new ' || n %% 11,
        'activity_time', '2026-12-01T01:56:58.404182Z', 'issue_comment', ''))"""

FILL = f"""
INSERT INTO pipeline.email_notification_log
    (receiver_id, triggered_by_id, entity_name, entity_identifier, data, urgent)
SELECT
    md5('person ' || %(first)s + n %% %(receivers)s), 'p' || n %% 50, 'issue',
    md5('item ' || n %% %(stacks)s / %(receivers)s), {DATA}, %(urgent)s
FROM generate_series(0, %(rows)s - 1) AS n
"""


@dataclass
class Database:
    """A database with the pipeline's schema, gone afterwards."""

    url: str
    connection: Connection
    settings: Settings
    broker: PostgresBroker
    doorbells: Doorbells = field(init=False)

    def __post_init__(self) -> None:
        self.doorbells = Doorbells(self.broker, senders=self.settings.senders)

    def query(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[Any]:
        """Run one statement in a transaction of its own and return its rows, if it has any."""
        with self.connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            return cursor.fetchall() if cursor.description else []

    def value(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Any:
        """The first column of the first row."""
        return self.query(sql, parameters)[0][0]

    def fill(
        self,
        rows: int,
        *,
        stacks: int | None = None,
        receivers: int | None = None,
        urgent: bool = False,
        first: int = 0,
    ) -> None:
        """Write notifications, those of a stack far apart as they are in life."""
        stacks = max(stacks or rows // ROWS_PER_STACK, 1)
        receivers = max(receivers or stacks // 4, 1)
        self.query(
            FILL,
            {
                "rows": rows,
                "stacks": stacks,
                "receivers": receivers,
                "urgent": urgent,
                "first": first,
            },
        )

    def fill_people(self) -> None:
        """A recipient for everybody who is told of something."""
        self.query(
            "INSERT INTO pipeline.recipient (id, email, display_name, time_zone) "
            "SELECT DISTINCT receiver_id, 'p' || receiver_id || '@people.example', "
            "'Person ' || left(receiver_id, 6), 'Europe/Paris' "
            "FROM pipeline.email_notification_log ON CONFLICT DO NOTHING"
        )
        self.query(
            "INSERT INTO pipeline.recipient (id, email, display_name) "
            "SELECT 'p' || n, 'p' || n || '@people.example', 'Actor ' || n "
            "FROM generate_series(0, 49) AS n ON CONFLICT DO NOTHING"
        )

    def settle_down(self) -> None:
        """Statistics and a checkpoint, so that the next measurement doesn't pay for the last."""
        self.query("VACUUM (ANALYZE) pipeline.email_notification_log, pipeline.delivery")
        self.query("CHECKPOINT")

    def stack(self, **options: Any) -> Pass:
        """One stacking pass."""
        return run_pass(self.connection, self.settings, self.doorbells, **options)

    def send_all_by_sql(self) -> None:
        """Make everything look sent a while ago: rows beside those that are measured."""
        with transaction(self.connection) as cursor:
            cursor.execute(
                "UPDATE pipeline.delivery SET state = 'sent', sent_at = now(), updated_at = now() "
                "WHERE state = 'queued'"
            )


@dataclass
class Bench:
    """A run of the benchmarks.

    Attributes:
      scale: 1.0 is the full size; the quick run takes a part of it.
      repeat: How often each measurement is taken.
      folder: For what the processes write.
    """

    server: EmbeddedPostgres
    folder: Path
    scale: float
    repeat: int
    most_rows: int

    def sized(self, count: int, least: int = 1) -> int:
        """A count at this run's scale."""
        return max(int(count * self.scale), least)

    @contextmanager
    def database(self, **changes: Any) -> Iterator[Database]:
        """A database of its own, with default settings but for `changes`."""
        name = f"bench_{uuid.uuid4().hex[:10]}"
        self.server.create_database(name)
        url = self.server.dsn(name)
        settings = Settings(
            database_url=url, mail_from="Tracker <tracker@bench.example>", **changes
        )
        broker = PostgresBroker(url=url, results=False)
        with closing(connect(url, application_name="benchmark")) as connection:
            init(connection)
            try:
                yield Database(url, connection, settings, broker)
            finally:
                connection.close()
                broker.pool.closeall()
                with closing(connect(self.server.dsn("postgres"))) as last, last.cursor() as cursor:
                    cursor.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


#: Loaded to count statements; everything else is as Postgres comes.
DEFAULTS = {"shared_preload_libraries": "pg_stat_statements"}

#: What a database of this size would be given on a machine of its own.
ROOMY = {"shared_buffers": "2GB", "max_wal_size": "8GB"}


@contextmanager
def opened(*, scale: float, repeat: int, most_rows: int) -> Iterator[Bench]:
    """A Postgres of the benchmarks' own: fsync on, default settings."""
    with tempfile.TemporaryDirectory(prefix="pipeline-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with EmbeddedPostgres(folder / "postgres", temporary=True, settings=DEFAULTS) as server:
            yield Bench(server, folder, scale, repeat, most_rows)


@contextmanager
def roomy(bench: Bench) -> Iterator[Bench]:
    """The same on a second Postgres that has room for its tables in memory."""
    folder = bench.folder / "roomy"
    with EmbeddedPostgres(folder, temporary=True, settings={**DEFAULTS, **ROOMY}) as server:
        yield replace(bench, server=server)
