"""What an INSERT of a notification costs the application that makes it."""

from __future__ import annotations

from psycopg2.extras import Json, execute_values

from benchmarks.bench import Bench, Database
from benchmarks.measuring import Finding, number, sample, watch

BARE = """
CREATE TABLE bare (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(), receiver_id text NOT NULL,
    triggered_by_id text, entity_name text NOT NULL, entity_identifier text NOT NULL,
    data jsonb NOT NULL, urgent boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now(), processed_at timestamptz,
    sent_at timestamptz, delivery_id uuid)"""

COLUMNS = "(receiver_id, triggered_by_id, entity_name, entity_identifier, data)"
DATA = {
    "issue": {"id": "17", "name": "Sign-in fails", "identifier": "WEB", "sequence_id": 12},
    "issue_activity": {
        "verb": "updated", "field": "state", "old_value": "Todo", "new_value": "Done",
        "activity_time": "2026-12-01T01:56:58.404182Z", "actor": "None",
    },
}  # fmt: skip


def producers(bench: Bench) -> Finding:
    """One row a transaction, 100 rows a transaction, 1,000 rows a statement; in turns."""
    count = bench.sized(3_000, 300)
    ways = {
        "one row a transaction": one_by_one,
        "100 rows a transaction, a statement each": in_hundreds,
        "1,000 rows a statement": in_bulk,
    }
    ours: dict[str, list[float]] = {way: [] for way in ways}
    bare: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(bench.repeat):
        with bench.database() as database:
            database.query(BARE)
            for way, insert in ways.items():
                rows = count * (10 if insert is in_bulk else 1)
                # In slices and by turns: what else the machine does falls on both alike.
                spent = {"pipeline.email_notification_log": 0.0, "bare": 0.0}
                for _ in range(5):
                    for table in spent:
                        spent[table] += insert(database, table, rows // 5)
                ours[way].append(spent["pipeline.email_notification_log"] / rows * 1e6)
                bare[way].append(spent["bare"] / rows * 1e6)
    ratios = {
        way: sample([a / b for a, b in zip(ours[way], bare[way], strict=True)]) for way in ways
    }
    worst = max(ratio.median for ratio in ratios.values())
    return Finding(
        name="producers",
        title="Producers: INSERT of a notification",
        limit="at most 1.3 × of a bare table",
        found=", ".join(f"{ratios[way].median:.2f} × for {way}" for way in ways),
        reached=worst <= 1.3,
        columns=["", "µs a row", "bare table, µs a row", "ratio"],
        rows=[
            [way, sample(ours[way]).told(), sample(bare[way]).told(), ratios[way].told(" ×")]
            for way in ways
        ],
        about=f"{number(count)} rows each way. The bare table has the same columns and its primary "
        "key, and nothing else. Ours has in addition: checks of the length of three columns, and "
        "the index of what waits, by receiver and item, which is what makes a pass flat.",
        numbers={"microseconds_per_row": ours, "bare_microseconds_per_row": bare},
    )


def row(n: int) -> tuple[object, ...]:
    """One notification."""
    return (f"person {n % 997}", "p1", "issue", f"item {n % 4999}", Json(DATA))


def one_by_one(database: Database, table: str, count: int) -> float:
    """Each in a transaction of its own."""
    statement = f"INSERT INTO {table} {COLUMNS} VALUES (%s, %s, %s, %s, %s)"
    with watch() as taken, database.connection.cursor() as cursor:
        for n in range(count):
            cursor.execute(statement, row(n))
    return taken.seconds


def in_hundreds(database: Database, table: str, count: int) -> float:
    """A hundred statements a transaction."""
    statement = f"INSERT INTO {table} {COLUMNS} VALUES (%s, %s, %s, %s, %s)"
    with watch() as taken, database.connection.cursor() as cursor:
        for n in range(count):
            if n % 100 == 0:
                cursor.execute("BEGIN" if n == 0 else "COMMIT; BEGIN")
            cursor.execute(statement, row(n))
        cursor.execute("COMMIT")
    return taken.seconds


def in_bulk(database: Database, table: str, count: int) -> float:
    """A thousand rows a statement."""
    with watch() as taken, database.connection.cursor() as cursor:
        execute_values(
            cursor,
            f"INSERT INTO {table} {COLUMNS} VALUES %s",
            [row(n) for n in range(count)],
            page_size=1000,
        )
    return taken.seconds
