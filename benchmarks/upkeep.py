"""A week of load: do tables and indexes stay at a bounded size?"""

from __future__ import annotations

from datetime import datetime

from benchmarks.bench import Bench, Database
from benchmarks.measuring import Finding, Lines, number
from pipeline.recovery import Recovery

TABLES = ("email_notification_log", "delivery", "delivery_attempt")

#: Marks everything that waits as sent, as a sender does, attempts and rows included.
SEND = """
UPDATE pipeline.delivery
SET state = 'sending', attempt_token = gen_random_uuid(),
    lease_expires_at = now() + interval '1 minute'
WHERE state = 'queued';

INSERT INTO pipeline.delivery_attempt (delivery_id, attempt_number, attempt_token, worker)
SELECT id, 1, attempt_token, 'simulated:1:1' FROM pipeline.delivery WHERE state = 'sending';

UPDATE pipeline.delivery SET attempt_count = 1, updated_at = now() WHERE state = 'sending';

UPDATE pipeline.delivery SET state = 'transmitting' WHERE state = 'sending';

UPDATE pipeline.delivery_attempt SET stage = 'dot' WHERE outcome IS NULL;

UPDATE pipeline.email_notification_log SET sent_at = now() WHERE sent_at IS NULL;

UPDATE pipeline.delivery_attempt
SET stage = 'reply', smtp_code = 250, reply = '2.0.0 Ok', outcome = 'sent', finished_at = now()
WHERE outcome IS NULL;

UPDATE pipeline.delivery
SET state = 'sent', sent_at = now(), lease_expires_at = NULL
WHERE state = 'transmitting'
"""

#: Dead rows of a table, and how many there may be before autovacuum comes: by its own settings.
DUE = """
SELECT pg_class.relname
FROM pg_stat_user_tables
JOIN pg_class ON pg_class.oid = relid
WHERE schemaname = 'pipeline'
    AND n_dead_tup > coalesce((
        SELECT split_part(option, '=', 2)::float8 FROM unnest(reloptions) AS option
        WHERE option LIKE 'autovacuum_vacuum_threshold=%'), 50)
    + reltuples * coalesce((
        SELECT split_part(option, '=', 2)::float8 FROM unnest(reloptions) AS option
        WHERE option LIKE 'autovacuum_vacuum_scale_factor=%'), 0.2)
"""


def upkeep(bench: Bench) -> Finding:
    """Seven days of eight rounds each; what is older than two days is purged."""
    rows = bench.sized(4_000, 400)
    rounds, kept_rounds = 56, 16
    sizes: dict[str, list[tuple[float, float]]] = {table: [] for table in TABLES}
    vacuums = 0
    ends: list[datetime] = []
    with bench.database() as database:
        recovery = Recovery(database.connection, database.settings, database.doorbells)
        for turn in range(rounds):
            database.fill(rows, first=turn * 1_000_000)
            database.stack()
            for statement in SEND.split(";"):
                database.query(statement)
            ends.append(database.value("SELECT now()"))
            if turn >= kept_rounds:
                # Time is not waited for: what is two days old is made older than it is kept.
                database.query(
                    "UPDATE pipeline.delivery SET updated_at = now() - interval '31 days' "
                    "WHERE created_at <= %(end)s",
                    {"end": ends[turn - kept_rounds]},
                )
            recovery.purge()
            vacuums += _vacuum(database)
            for table in TABLES:
                size = database.value(
                    "SELECT pg_total_relation_size(%(name)s::regclass)",
                    {"name": f"pipeline.{table}"},
                )
                sizes[table].append((turn / 8, size / 1e6))
    growth = {
        table: max(size for _, size in series[-8:]) / max(size for _, size in series[24:32])
        for table, series in sizes.items()
    }
    worst = max(growth.values())
    return Finding(
        name="upkeep",
        title="A week of load",
        limit="bounded",
        found=f"the last day is {worst:.2f} × of the fourth, when the purge had been at work for a "
        "while",
        reached=worst <= 1.15,
        columns=["table and its indexes", "MB, day 2", "MB, day 4", "MB, day 7", "day 7 / day 4"],
        rows=[
            [
                table,
                *(number(max(size for _, size in series[at : at + 8]), 1) for at in (8, 24, 48)),
                f"{growth[table]:.2f} ×",
            ]
            for table, series in sizes.items()
        ],
        about=f"{rounds} rounds of {rows:,} rows: written, stacked, sent, and purged after two "
        f"days. Vacuum comes when the tables' own settings say so ({vacuums} times).",
        numbers={"megabytes": sizes},
        plots=[
            Lines(
                "upkeep",
                "A week: size of tables and indexes",
                "day",
                "MB",
                dict(sizes),
            )
        ],
    )


def _vacuum(database: Database) -> int:
    """What autovacuum would do, at once; how many tables it came to."""
    database.query("SELECT pg_stat_force_next_flush()")
    due = [name for (name,) in database.query(DUE)]
    for name in due:
        database.query(f"VACUUM (ANALYZE) pipeline.{name}")
    return len(due)
