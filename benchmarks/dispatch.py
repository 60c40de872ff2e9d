"""Dispatch: claim, stack, deliveries and messages, beside the same writes as bare SQL."""

from __future__ import annotations

import time

from benchmarks.bench import ROOMY, ROWS_PER_STACK, Bench, Database, roomy
from benchmarks.measuring import Bars, Finding, Lines, Sample, number, sample, watch

#: The same writes with nothing around them: no locks, no look for waiting deliveries, no chunks.
BARE = (
    """CREATE TEMPORARY TABLE stack ON COMMIT DROP AS
    SELECT receiver_id, entity_name, entity_identifier, gen_random_uuid() AS id,
        count(*) AS row_count
    FROM pipeline.email_notification_log
    WHERE processed_at IS NULL
    GROUP BY receiver_id, entity_name, entity_identifier""",
    """INSERT INTO pipeline.delivery
        (id, receiver_id, entity_name, entity_identifier, message_id, notification_count)
    SELECT id, receiver_id, entity_name, entity_identifier, '<' || id || '@bench.example>',
        row_count
    FROM stack""",
    """UPDATE pipeline.email_notification_log AS notification
    SET processed_at = now(), delivery_id = stack.id
    FROM stack
    WHERE notification.processed_at IS NULL
        AND notification.receiver_id = stack.receiver_id
        AND notification.entity_name = stack.entity_name
        AND notification.entity_identifier = stack.entity_identifier""",
)


def bare_seconds(bench: Bench, rows: int) -> float:
    """The bare writes for so many rows."""
    with bench.database() as database:
        database.fill(rows)
        database.settle_down()
        with watch() as taken:
            database.query("BEGIN")
            for statement in BARE:
                database.query(statement)
            database.query("COMMIT")
        return taken.seconds


def pass_seconds(database: Database, rows: int) -> tuple[float, list[float]]:
    """A pass over so many rows: how long it took, and each of its transactions."""
    chunks: list[float] = []
    last = time.perf_counter()

    def tell(_: object) -> None:
        nonlocal last
        now = time.perf_counter()
        chunks.append(now - last)
        last = now

    with watch() as taken:
        done = database.stack(on_chunk=tell)
    assert done.claimed_count == rows, (done, rows)
    return taken.seconds, chunks


def dispatch(bench: Bench) -> Finding:
    """One pass over 200,000 rows, and the same writes bare, in turns."""
    rows = bench.sized(200_000, 5_000)
    ours: list[float] = []
    bare: list[float] = []
    for _ in range(bench.repeat):
        bare.append(bare_seconds(bench, rows))
        with bench.database() as database:
            database.fill(rows)
            database.settle_down()
            ours.append(pass_seconds(database, rows)[0])
    ratios = sample([mine / theirs for mine, theirs in zip(ours, bare, strict=True)])
    rates = [sample([rows / seconds for seconds in taken]) for taken in (ours, bare)]
    return Finding(
        name="dispatch",
        title="Dispatch against the bare writes",
        limit="at most 1.25 ×",
        found=f"{ratios.told(' ×')} at {number(rates[0].median)} rows/s",
        reached=ratios.median <= 1.25,
        columns=["", "seconds", "rows/s"],
        rows=[
            ["a pass", sample(ours).told(), rates[0].told()],
            ["bare set-based SQL", sample(bare).told(), rates[1].told()],
            ["ratio", ratios.told(" ×"), ""],
        ],
        about=f"{rows:,} rows in stacks of {ROWS_PER_STACK}, the rows of a stack far apart in the "
        "table. A pass claims them in chunks of 2,000 stacks, each with its locks, its look for "
        "deliveries that still wait, its doorbells and a commit to disk; the bare SQL groups, "
        "inserts and updates everything in one transaction.",
        numbers={"rows": rows, "pass_seconds": ours, "bare_seconds": bare},
        plots=[
            Bars(
                "dispatch",
                "Dispatch: rows a second",
                "rows/s",
                [
                    ("a pass", rates[0].median, rates[0].low, rates[0].high),
                    ("bare set-based SQL", rates[1].median, rates[1].low, rates[1].high),
                ],
            )
        ],
    )


def scale(bench: Bench) -> Finding:
    """What a row costs, whatever waits; on default settings, and with room in memory."""
    sizes = [
        size for size in (1_000, 10_000, 100_000, 1_000_000, 5_000_000) if size <= bench.most_rows
    ]
    chunks: list[float] = []
    costs = {size: pass_costs(bench, size, chunks) for size in sizes}
    bare = {size: bare_seconds(bench, size) / size * 1e6 for size in sizes}
    with roomy(bench) as other:
        room = {size: pass_costs(other, size, []) for size in sizes}
    spread, spread_in_memory, spread_bare = (
        _spread({size: of[size] for size in sizes if size >= 10_000})
        for of in (
            {size: costs[size].median for size in sizes},
            {size: room[size].median for size in sizes},
            bare,
        )
    )
    taken = sample(chunks)
    return Finding(
        name="scale",
        title="Cost of a row, by how many wait",
        limit="flat, within 1.25 × from 10,000 on; transactions p99 under 1 s",
        found=f"{spread:.2f} × between the cheapest and the dearest (bare SQL {spread_bare:.2f} ×, "
        f"with the tables in memory {spread_in_memory:.2f} ×); transactions "
        f"p99 {taken.percentile(0.99) * 1000:.0f} ms, longest {taken.high * 1000:.0f} ms",
        reached=spread <= 1.25 and taken.percentile(0.99) < 1,
        columns=["rows waiting", "µs a row", "bare, µs a row", "ratio", "µs a row, in memory"],
        rows=[
            [
                f"{size:,}",
                costs[size].told(),
                number(bare[size]),
                f"{costs[size].median / bare[size]:.2f} ×",
                room[size].told(),
            ]
            for size in sizes
        ],
        about="A pass over everything that waits, on tables that hold nothing else, the rows of a "
        "stack spread evenly over the whole table. A pass's statements cost the same whatever the "
        "backlog; what grows is the disk's part, for the bare SQL too: a million rows are 1.2 GB, "
        "the default `shared_buffers` 128 MB and the default `max_wal_size` 1 GB, so that pages "
        "are read, written and logged as a whole again and again. The last column is with "
        f"{' and '.join(f'`{name}={value}`' for name, value in ROOMY.items())}.",
        numbers={
            "microseconds_per_row": {str(size): costs[size].values for size in sizes},
            "bare_microseconds_per_row": {str(size): bare[size] for size in sizes},
            "in_memory_microseconds_per_row": {str(size): room[size].values for size in sizes},
            "transaction_seconds": {
                "p50": taken.median,
                "p99": taken.percentile(0.99),
                "longest": taken.high,
            },
        },
        plots=[
            Lines(
                "scale",
                "Cost of a row by the size of the backlog",
                "rows waiting",
                "µs a row",
                {
                    "a pass": [(size, costs[size].median) for size in sizes],
                    "bare SQL": [(size, bare[size]) for size in sizes],
                    "in memory": [(size, room[size].median) for size in sizes],
                },
                log_x=True,
            )
        ],
    )


def pass_costs(bench: Bench, size: int, chunks: list[float]) -> Sample:
    """Microseconds a row, and the seconds that each transaction took."""
    costs = []
    for _ in range(bench.repeat if size <= 100_000 else 1):
        with bench.database() as database:
            database.fill(size)
            database.settle_down()
            seconds, transactions = pass_seconds(database, size)
        costs.append(seconds / size * 1e6)
        chunks += transactions
    return sample(costs)


def _spread(costs: dict[int, float]) -> float:
    return max(costs.values(), default=1.0) / min(costs.values(), default=1.0)
