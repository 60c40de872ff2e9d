"""Backlogs of every shape: processed rows beside, rows that are not urgent, giants, and memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from benchmarks.bench import Bench, Database
from benchmarks.dispatch import pass_seconds
from benchmarks.measuring import Finding, Lines, number, sample, watch
from benchmarks.processes import ROOT, Watcher, children, fleet, sink, wait_until
from benchmarks.sending import prepared, waiting
from pipeline.sending import Sender

#: What a process may have in memory, in megabytes.
MEMORY_LIMIT = 100


def beside(bench: Bench) -> Finding:
    """The same rows alone, beside processed ones, and urgent ones beside those that can wait."""
    rows = bench.sized(50_000, 2_000)
    many = min(bench.sized(5_000_000, 20_000), bench.most_rows)
    costs: dict[str, list[float]] = {"alone": [], "processed": [], "urgent": [], "waiting": []}
    for _ in range(bench.repeat):
        with bench.database() as database:
            database.fill(rows)
            database.settle_down()
            costs["alone"].append(pass_seconds(database, rows)[0] / rows * 1e6)
        with bench.database() as database:
            database.fill(rows, urgent=True)
            database.settle_down()
            costs["urgent"].append(urgent_seconds(database, rows) / rows * 1e6)
    with bench.database() as database:
        database.fill(many)
        database.stack()
        database.send_all_by_sql()
        for _ in range(bench.repeat):
            database.fill(rows, first=10_000_000)
            database.settle_down()
            costs["processed"].append(pass_seconds(database, rows)[0] / rows * 1e6)
            database.send_all_by_sql()
    with bench.database() as database:
        database.fill(many, first=10_000_000)
        for _ in range(bench.repeat):
            database.fill(rows, urgent=True)
            database.settle_down()
            costs["waiting"].append(urgent_seconds(database, rows) / rows * 1e6)
            database.send_all_by_sql()
    samples = {name: sample(values) for name, values in costs.items()}
    processed = samples["processed"].median / samples["alone"].median
    urgent = samples["waiting"].median / samples["urgent"].median
    return Finding(
        name="beside",
        title="Cost of a row beside millions of others",
        limit="within 1.25 ×",
        found=f"{processed:.2f} × beside {many:,} processed rows; urgent rows {urgent:.2f} × "
        f"beside {many:,} that can wait for the next tick",
        reached=max(processed, urgent) <= 1.25,
        columns=["a pass over", "µs a row", "against alone"],
        rows=[
            [f"{rows:,} rows, alone", samples["alone"].told(), ""],
            [
                f"the same beside {many:,} processed rows",
                samples["processed"].told(),
                f"{processed:.2f} ×",
            ],
            [f"{rows:,} urgent rows, alone", samples["urgent"].told(), ""],
            [
                f"the same beside {many:,} rows that are not due yet",
                samples["waiting"].told(),
                f"{urgent:.2f} ×",
            ],
        ],
        about="What is not due before the next tick is not read by a pass for urgent rows: a "
        "partial index of its own carries it. Processed rows are in no index of the claim.",
        numbers={"microseconds_per_row": costs, "beside": many, "rows": rows},
    )


def urgent_seconds(database: Database, rows: int) -> float:
    """A pass over urgent rows alone."""
    with watch() as taken:
        done = database.stack(urgent_only=True)
    assert done.claimed_count == rows, (done, rows)
    return taken.seconds


def stacking_process(database: Database) -> tuple[float, float]:
    """`pipeline stack` as a process: seconds, and megabytes at its largest."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline", "stack"],
        cwd=ROOT,
        env={
            **os.environ,
            "PIPELINE_DATABASE_URL": database.url,
            "PIPELINE_MAIL_FROM": database.settings.mail_from,
        },
        stdout=subprocess.DEVNULL,
    )
    started = time.perf_counter()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return time.perf_counter() - started, usage.ru_maxrss / 1024


def extremes(bench: Bench) -> Finding:
    """One stack of a million rows, a million stacks of one row."""
    many = min(bench.sized(1_000_000, 20_000), bench.most_rows)
    table, numbers = [], {}
    highest = 0.0
    shapes = {"one receiver, one stack": 1, "as many receivers, one row each": many}
    for label, stacks in shapes.items():
        with sink() as server, bench.database(smtp_url=server.url) as database:
            database.fill(many, stacks=stacks, receivers=stacks)
            database.fill_people()
            database.settle_down()
            seconds, megabytes = stacking_process(database)
            assert database.value("SELECT count(*) FROM pipeline.delivery") == stacks
            sent = 0.0
            if stacks == 1:
                with watch() as taken:
                    outcomes = Sender(database.url, database.settings, database.doorbells).answer()
                assert outcomes == {"sent": 1}, outcomes
                sent = taken.seconds
        highest = max(highest, megabytes)
        told = number(sent) if sent else ""
        table.append([label, f"{many:,}", number(seconds), number(megabytes, 1), told])
        numbers[label] = {"rows": many, "seconds": seconds, "megabytes": megabytes, "sending": sent}
    return Finding(
        name="extremes",
        title="The two extremes of a backlog",
        limit="both finish, memory flat",
        found=f"both finish, the stacking process has {highest:.0f} MB at the most",
        reached=highest <= MEMORY_LIMIT,
        columns=["", "rows", "stacked in, s", "stacking process, MB", "sent in, s"],
        rows=table,
        about="A stack that has more rows than a transaction may claim is claimed in parts, each "
        "of which joins the delivery of the first. Its sender reads the newest 1,000 rows within "
        "4 MB and counts the rest; when it is accepted, all its rows are marked as sent in the "
        "transaction that settles it.",
        numbers=numbers,
    )


def memory(bench: Bench) -> Finding:
    """Resident memory of both processes, by the size of the backlog."""
    sizes = [bench.sized(size, 200) for size in (1_000, 10_000, 60_000)]
    stackers: list[tuple[float, float]] = []
    workers: list[tuple[float, float]] = []
    for size in dict.fromkeys(sizes):
        workers.append((size, worker_megabytes(bench, size)))
        with bench.database() as database:
            database.fill(size * 5)
            stackers.append((size, stacking_process(database)[1]))
    largest = max(value for _, value in stackers + workers)
    return Finding(
        name="memory",
        title="Memory of the stacking and the sending process",
        limit=f"at most {MEMORY_LIMIT} MB each, flat",
        found=f"{largest:.0f} MB at the most",
        reached=largest <= MEMORY_LIMIT,
        columns=["deliveries waiting", "stacking process, MB", "worker process with 4 senders, MB"],
        rows=[
            [f"{size:,}", number(stacker, 1), number(worker, 1)]
            for (size, stacker), (_, worker) in zip(stackers, workers, strict=True)
        ],
        about="Rows never travel to the stacking process. A sender holds a chunk of 25 deliveries "
        "and what it has read ahead, within 4 MB.",
        numbers={"stacking": stackers, "sending": workers},
        plots=[
            Lines(
                "memory",
                "Resident memory by the size of the backlog",
                "deliveries waiting",
                "MB",
                {"stacking": stackers, "sending": workers},
                log_x=True,
            )
        ],
    )


def worker_megabytes(bench: Bench, mails: int) -> float:
    """A worker process with four senders at its largest, while it sends, for some seconds."""
    with sink() as server, bench.database() as database:
        prepared(database, mails)
        with fleet(bench.folder, database, PIPELINE_SMTP_URL=server.url) as running:
            process = running.worker(processes=1, threads=4)
            wait_until(lambda: waiting(database) < mails)
            with Watcher(children(process.pid)[1:] or [process.pid]) as watcher:
                deadline = time.monotonic() + 8
                wait_until(lambda: waiting(database) == 0 or time.monotonic() > deadline)
        return watcher.highest
