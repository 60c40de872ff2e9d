"""Sending: mails a second through real workers, beside a bare loop."""

from __future__ import annotations

import subprocess
import sys
import time

from benchmarks.bench import ROWS_PER_STACK, Bench, Database
from benchmarks.measuring import Bars, Finding, number, sample
from benchmarks.processes import ROOT, Watcher, children, fleet, sink, wait_until

#: Worker processes and threads on two cores, and connections of the bare loop.
PROCESSES, THREADS = 2, 2

#: Between these shares of all mails the rate is taken: not while processes start or run dry.
FROM, TO = 0.1, 0.9


def prepared(database: Database, mails: int) -> None:
    """So many deliveries that wait, and doorbells for them."""
    database.fill(mails * ROWS_PER_STACK, stacks=mails)
    database.fill_people()
    database.settle_down()
    database.stack()
    database.settle_down()


def steady_rate(database: Database) -> float:
    """Mails a second in the middle of what was sent."""
    return float(
        database.value(
            "SELECT (%(to)s - %(from)s)::float * max(all_count) / extract(epoch FROM "
            "min(finished_at) FILTER (WHERE place >= all_count * %(to)s) - "
            "min(finished_at) FILTER (WHERE place >= all_count * %(from)s)) "
            "FROM (SELECT finished_at, row_number() OVER (ORDER BY finished_at) AS place, "
            "count(*) OVER () AS all_count FROM pipeline.delivery_attempt "
            "WHERE outcome = 'sent') AS sent",
            {"from": FROM, "to": TO},
        )
    )


def waiting(database: Database) -> int:
    """Deliveries that are not sent."""
    return int(
        database.value(
            "SELECT count(*) FROM pipeline.delivery "
            "WHERE state IN ('queued', 'sending', 'transmitting', 'deferred', 'uncertain')"
        )
    )


def through_workers(
    bench: Bench, mails: int, *, processes: int = PROCESSES, threads: int = THREADS
) -> tuple[float, Watcher]:
    """Mails a second, and the memory of the workers."""
    with sink() as server, bench.database(senders=processes * threads) as database:
        prepared(database, mails)
        environment = {
            "PIPELINE_SMTP_URL": server.url,
            "PIPELINE_SENDERS": str(processes * threads),
        }
        with fleet(bench.folder, database, **environment) as running:
            running.scheduler()
            workers = running.worker(processes=processes, threads=threads)
            wait_until(lambda: waiting(database) < mails)
            with Watcher(children(workers.pid)) as memory:
                wait_until(lambda: waiting(database) == 0, interval=0.25)
        taken = server.close()
        assert taken == mails, (taken, mails)
        return steady_rate(database), memory


def through_bare_loop(
    bench: Bench, mails: int, *, processes: int = PROCESSES, threads: int = THREADS
) -> float:
    """Mails a second of the bare loop."""
    with sink() as server, bench.database() as database:
        prepared(database, mails)
        share = mails // processes
        loops = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "benchmarks.bare_loop"),
                    *(database.url, str(server.port), str(share), str(threads)),
                ],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(processes)
        ]
        for loop in loops:
            assert loop.stdout is not None
            assert loop.stdout.readline() == "ready\n"
        started = time.perf_counter()
        for loop in loops:
            assert loop.stdin is not None
            loop.stdin.write("go\n")
            loop.stdin.flush()
        for loop in loops:
            assert loop.stdout is not None
            assert float(loop.stdout.readline()) > 0
        seconds = time.perf_counter() - started
        for loop in loops:
            loop.communicate()
        return share * processes / seconds


def sending(bench: Bench) -> Finding:
    """Workers and the bare loop, in turns."""
    mails = bench.sized(5_000, 400)
    ours, bare = [], []
    for _ in range(bench.repeat):
        bare.append(through_bare_loop(bench, mails))
        ours.append(through_workers(bench, mails)[0])
    ratios = sample([mine / theirs for mine, theirs in zip(ours, bare, strict=True)])
    rates = sample(ours), sample(bare)
    return Finding(
        name="sending",
        title="Sending against a bare loop",
        limit="at least 0.7 ×, and at least 500 mails/s on two cores",
        found=f"{ratios.told(' ×')}, {number(rates[0].median)} mails/s",
        reached=ratios.median >= 0.7 and rates[0].median >= 500,
        columns=["", "mails/s"],
        rows=[
            [f"real workers, {PROCESSES} processes of {THREADS} threads", rates[0].told()],
            ["bare loop with smtplib, the same processes and threads", rates[1].told()],
            ["ratio", ratios.told(" ×")],
        ],
        about=f"{mails:,} deliveries of {ROWS_PER_STACK} notifications. The workers, the database "
        "and the server share the same cores. The bare loop has everything read beforehand: it "
        "makes the same digests and mails and hands them to smtplib over kept sessions.",
        numbers={"mails": mails, "mails_per_second": ours, "bare_mails_per_second": bare},
        plots=[
            Bars(
                "sending",
                "Sending: mails a second",
                "mails/s",
                [
                    ("real workers", rates[0].median, rates[0].low, rates[0].high),
                    ("bare loop", rates[1].median, rates[1].low, rates[1].high),
                ],
            )
        ],
    )
