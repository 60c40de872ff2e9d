"""Sending: mails a second through real workers, beside a bare loop."""

from __future__ import annotations

import subprocess
import sys
import time

from benchmarks.bench import ROWS_PER_STACK, Bench, Database
from benchmarks.measuring import Finding, Lines, number, sample
from benchmarks.processes import ROOT, Watcher, children, fleet, sink, wait_until

#: Worker processes on two cores, and the bare loop's.
PROCESSES = 2

#: Threads, and so connections, of each process. The last is what is compared with the limit.
THREADS = (2, 4, 8, 16)

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
    bench: Bench, mails: int, *, processes: int = PROCESSES, threads: int
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
    bench: Bench, mails: int, *, processes: int = PROCESSES, threads: int
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
    mails = bench.sized(10_000, 800)
    ours: dict[int, list[float]] = {threads: [] for threads in THREADS}
    bare: dict[int, list[float]] = {threads: [] for threads in THREADS}
    for turn in range(bench.repeat):
        # All of them once, and the one that counts as often as is asked for.
        for threads in THREADS if turn == 0 else THREADS[-1:]:
            bare[threads].append(through_bare_loop(bench, mails, threads=threads))
            ours[threads].append(through_workers(bench, mails, threads=threads)[0])
    rates = {threads: (sample(ours[threads]), sample(bare[threads])) for threads in THREADS}
    ratios = {
        threads: sample([o / b for o, b in zip(ours[threads], bare[threads], strict=True)])
        for threads in THREADS
    }
    most = THREADS[-1]
    ratio, rate = ratios[most], rates[most][0]
    return Finding(
        name="sending",
        title="Sending against a bare loop",
        limit="at least 0.7 ×, and at least 500 mails/s on two cores",
        found=f"{ratio.told(' ×')}, {number(rate.median)} mails/s over {PROCESSES * most} "
        "connections",
        reached=ratio.median >= 0.7 and rate.median >= 500,
        columns=["connections", "real workers, mails/s", "bare loop, mails/s", "ratio"],
        rows=[
            [
                f"{PROCESSES * threads}: {PROCESSES} processes of {threads} threads",
                rates[threads][0].told(),
                rates[threads][1].told(),
                ratios[threads].told(" ×"),
            ]
            for threads in THREADS
        ],
        about=f"{mails:,} deliveries of {ROWS_PER_STACK} notifications. The workers, the database "
        "and the server share the same cores. The bare loop has everything read beforehand: it "
        "makes the same digests and mails and hands them to smtplib over kept sessions, in as "
        "many processes and threads. The senders of a process share their transactions, so what "
        "a mail costs the database gets less the more of them there are.",
        numbers={"mails": mails, "mails_per_second": ours, "bare_mails_per_second": bare},
        plots=[
            Lines(
                "sending",
                "Sending: mails a second",
                "connections",
                "mails/s",
                {
                    name: [
                        (PROCESSES * threads, rates[threads][place].median) for threads in THREADS
                    ]
                    for place, name in enumerate(("real workers", "bare loop"))
                },
            )
        ],
    )
