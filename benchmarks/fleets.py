"""One to eight worker processes, and a transaction that holds its snapshot for long."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from itertools import pairwise

from benchmarks.bench import Bench, Database
from benchmarks.dispatch import pass_seconds
from benchmarks.measuring import Finding, Lines, number, sample
from benchmarks.processes import fleet, sink, wait_until
from benchmarks.sending import prepared, steady_rate, waiting
from pipeline.database import connect
from pipeline.sending import Sender

WAITS = """
SELECT count(*) FILTER (WHERE wait_event_type = 'Lock'),
    count(*) FILTER (WHERE wait_event IN ('WALSync', 'WalSync', 'WALWrite', 'WalWrite')
        OR wait_event = 'WALWriteLock'),
    count(*) FILTER (WHERE state = 'active')
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""


#: Senders of each worker process.
SENDERS = 4


class Waits:
    """Looks now and then at what the sessions wait for."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.looks = self.locked = self.on_disk = self.active = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Waits:  # noqa: PYI034
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        with closing(connect(self.url)) as connection, connection.cursor() as cursor:
            while not self._stop.wait(0.05):
                cursor.execute(WAITS)
                found = cursor.fetchone()
                assert found is not None
                self.looks += 1
                self.locked += found[0]
                self.on_disk += found[1]
                self.active += found[2]

    def a_look(self, count: int) -> str:
        """How many sessions on average."""
        return f"{count / max(self.looks, 1):.2f}"


def workers(bench: Bench) -> Finding:
    """The same mails through one to eight worker processes."""
    mails = bench.sized(6_000, 600)
    rates: list[tuple[int, float]] = []
    table = []
    for processes in (1, 2, 4, 8):
        senders = processes * SENDERS
        with sink() as server, bench.database(senders=senders) as database:
            prepared(database, mails)
            with fleet(
                bench.folder,
                database,
                PIPELINE_SMTP_URL=server.url,
                PIPELINE_SENDERS=str(senders),
            ) as running:
                running.scheduler()
                running.worker(processes=processes, threads=SENDERS)
                wait_until(lambda: waiting(database) < mails)
                with Waits(database.url) as waits:
                    wait_until(lambda: waiting(database) == 0, interval=0.25)
            rate = steady_rate(database)
        rates.append((processes, rate))
        table.append(
            [
                str(processes),
                number(rate),
                waits.a_look(waits.locked),
                waits.a_look(waits.on_disk),
                waits.a_look(waits.active),
            ]
        )
    lowest_step = min(b[1] / a[1] for a, b in pairwise(rates))
    return Finding(
        name="workers",
        title="One to eight worker processes",
        limit="listed, no negative scaling",
        found=", ".join(f"{count}: {number(rate)}" for count, rate in rates) + " mails/s",
        reached=lowest_step >= 0.9,
        columns=[
            f"processes, {SENDERS} senders each",
            "mails/s",
            "sessions waiting for locks",
            "waiting for the disk",
            "at work",
        ],
        rows=table,
        about=f"{mails:,} mails. Sessions are counted every 50 ms and averaged. Two cores are used "
        "up by two processes and their sessions; beyond that more senders only help where the "
        "server or the disk is what is waited for.",
        numbers={"mails_per_second": dict(rates)},
        plots=[
            Lines(
                "workers",
                "Mails a second by worker processes",
                "worker processes",
                "mails/s",
                {"mails/s": [(float(a), b) for a, b in rates]},
            )
        ],
    )


def limits(bench: Bench) -> Finding:
    """A relay that takes so many messages a second, and four worker processes."""
    rate, senders, mails = 50, 8, bench.sized(400, 60)
    with sink() as server, bench.database(senders=senders) as database:
        prepared(database, mails)
        with fleet(
            bench.folder,
            database,
            PIPELINE_SMTP_URL=server.url,
            PIPELINE_SENDERS=str(senders),
            PIPELINE_RELAY_RATE=str(rate),
        ) as running:
            running.scheduler()
            running.worker(processes=4, threads=2)
            wait_until(lambda: waiting(database) == 0, interval=0.25)
        server.close()
    times = server.taken_at
    found = (len(times) - 1) / (times[-1] - times[0])
    most = max(sum(1 for at in times if start <= at < start + 1) for start in times)
    gaps = sample([(b - a) * 1000 for a, b in pairwise(times)])
    return Finding(
        name="limits",
        title="Messages a second, over all processes",
        limit=f"{rate} a second, as set, spread evenly",
        found=f"{found:.1f} a second, {most} in any second at the most, and "
        f"{server.most_connections} connections of {senders} allowed",
        reached=most <= rate * 1.1 and server.most_connections <= senders,
        columns=["", ""],
        rows=[
            ["messages a second", f"{found:.1f}"],
            ["most in any second", str(most)],
            ["between two, ms: p50, p99", f"{gaps.median:.1f}, {gaps.percentile(0.99):.1f}"],
            ["connections at once", str(server.most_connections)],
        ],
        about=f"{mails} mails through four worker processes of two threads, with "
        f"`PIPELINE_RELAY_RATE={rate}` and `PIPELINE_SENDERS={senders}`. Before each mail a sender "
        "takes the next moment from the relay's row in the database, and waits for it without a "
        "transaction; where no rate is set nothing is asked.",
        numbers={"per_second": found, "most": most, "gaps_ms": gaps.values},
    )


def snapshot(bench: Bench) -> Finding:
    """Rounds of stacking and sending while a transaction keeps its snapshot, and after it."""
    rows = bench.sized(10_000, 1_000)
    rounds, held_rounds = 6, bench.sized(48, 6)
    stacking: list[tuple[float, float]] = []
    rates: list[tuple[float, float]] = []
    sizes: list[float] = []
    with sink() as server, bench.database(smtp_url=server.url) as database:
        holder = connect(database.url, application_name="held snapshot")
        started = time.monotonic()
        held = 0.0
        for turn in range(rounds + held_rounds + rounds):
            if turn == rounds:
                with holder.cursor() as cursor:
                    cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                    cursor.execute("SELECT count(*) FROM pipeline.email_notification_log")
                held = time.monotonic()
            if turn == rounds + held_rounds:
                held = time.monotonic() - held
                holder.close()
            _one_round(database, rows, turn, stacking, rates)
            sizes.append(
                database.value("SELECT pg_total_relation_size('pipeline.delivery') / 1e6::float")
            )
        took = time.monotonic() - started
    phases = {
        "before": slice(0, rounds),
        "held": slice(rounds, rounds + held_rounds),
        "after": slice(rounds + held_rounds, None),
    }
    told = {
        name: (
            sample([cost for _, cost in stacking[part]]),
            sample([rate for _, rate in rates[part]]),
            max(sizes[part]),
        )
        for name, part in phases.items()
    }
    before = told["before"][1].median
    ratio = told["held"][1].median / before
    last = sample([rate for _, rate in rates[phases["held"]]][-rounds:]).median / before
    return Finding(
        name="snapshot",
        title="A snapshot that is held",
        limit="listed, no collapse",
        found=f"sending at {ratio:.2f} × while an idle transaction holds its snapshot for "
        f"{held:.0f} s ({last:.2f} × in the last rounds of them), "
        f"{told['after'][1].median / before:.2f} × after it",
        reached=last >= 0.5,
        columns=["", "stacking, µs a row", "one sender, mails/s", "delivery table, MB"],
        rows=[
            [name, cost.told(), rate.told(), number(size, 1)]
            for name, (cost, rate, size) in told.items()
        ],
        about=f"Rounds of {rows:,} rows, {took:.0f} s in all. Nothing that died since "
        "the snapshot can be cleaned up while it is held, so each claim steps over the entries of "
        "deliveries that are sent already. `pipeline check` warns of old transactions; Postgres "
        "ends idle ones by `idle_in_transaction_session_timeout`.",
        numbers={"stacking": stacking, "sending": rates, "megabytes": sizes, "held_seconds": held},
        plots=[
            Lines(
                "snapshot",
                f"Mails a second; a snapshot is held from round {rounds + 1} on, for {held:.0f} s",
                "round",
                "mails/s",
                {"one sender": [(turn + 1, rate) for turn, rate in rates]},
            )
        ],
    )


def _one_round(
    database: Database,
    rows: int,
    turn: int,
    stacking: list[tuple[float, float]],
    rates: list[tuple[float, float]],
) -> None:
    mails = rows // 20
    database.fill(rows, stacks=mails, first=turn * 1_000_000)
    database.fill_people()
    seconds, _ = pass_seconds(database, rows)
    stacking.append((turn, seconds / rows * 1e6))
    began = time.perf_counter()
    Sender(database.url, database.settings, database.doorbells).answer()
    rates.append((turn, mails / (time.perf_counter() - began)))
