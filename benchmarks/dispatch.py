"""Dispatch: claim, stack, deliveries and messages, beside the same writes as bare SQL."""

from __future__ import annotations

import time

from benchmarks.bench import ROWS_PER_STACK, Bench, Database
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
        "table. A pass claims them in chunks of 500 stacks, each with its locks, its look for "
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
    """What a row costs, whatever waits; alone, and beside millions that are processed."""
    sizes = [
        size for size in (1_000, 10_000, 100_000, 1_000_000, 5_000_000) if size <= bench.most_rows
    ]
    alone: dict[int, Sample] = {}
    bare: dict[int, float] = {}
    slowest: list[float] = []
    for size in sizes:
        repeat = bench.repeat if size <= 100_000 else 1
        costs = []
        for _ in range(repeat):
            with bench.database() as database:
                database.fill(size)
                database.settle_down()
                seconds, chunks = pass_seconds(database, size)
                costs.append(seconds / size * 1e6)
                slowest += chunks
        alone[size] = sample(costs)
        bare[size] = bare_seconds(bench, size) / size * 1e6
    reference = alone.get(10_000, alone[sizes[0]]).median
    large = [alone[size].median for size in sizes if size >= 10_000] or [reference]
    worst = max(large) / min(large)
    chunks_taken = sample(slowest)
    return Finding(
        name="scale",
        title="Cost of a row, by how many wait",
        limit="flat, within 1.25 × from 10,000 on; a pass's transactions p99 under 1 s",
        found=f"{worst:.2f} × between the cheapest and the dearest; transactions p99 "
        f"{chunks_taken.percentile(0.99) * 1000:.0f} ms, longest {chunks_taken.high * 1000:.0f} ms",
        reached=worst <= 1.25 and chunks_taken.percentile(0.99) < 1,
        columns=["rows waiting", "µs a row", "bare, µs a row", "ratio"],
        rows=[
            [
                f"{size:,}",
                alone[size].told(),
                number(bare[size]),
                f"{alone[size].median / bare[size]:.2f} ×",
            ]
            for size in sizes
        ],
        about="A pass over everything that waits, on tables that hold nothing else.",
        numbers={
            "microseconds_per_row": {str(size): alone[size].values for size in sizes},
            "bare_microseconds_per_row": {str(size): bare[size] for size in sizes},
            "transaction_seconds": {
                "p50": chunks_taken.median,
                "p99": chunks_taken.percentile(0.99),
                "longest": chunks_taken.high,
            },
        },
        plots=[
            Lines(
                "scale",
                "Cost of a row by the size of the backlog",
                "rows waiting",
                "µs a row",
                {
                    "a pass": [(size, alone[size].median) for size in sizes],
                    "bare SQL": [(size, bare[size]) for size in sizes],
                },
                log_x=True,
            )
        ],
    )
