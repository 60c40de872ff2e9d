"""From the commit of an urgent row to the server's 250, on an idle system."""

from __future__ import annotations

import smtplib
import time
from collections.abc import Callable

from benchmarks.bench import Bench, Database
from benchmarks.measuring import Bars, Finding, Sample, sample
from benchmarks.processes import fleet, sink, wait_until
from pipeline import notify
from pipeline.database import transaction


def latency(bench: Bench) -> Finding:
    """Urgent rows, one after another."""
    count = bench.sized(60, 10)
    committed: list[float] = []
    with sink() as server, bench.database() as database:
        database.fill(1)
        database.fill_people()
        (receiver,) = database.query("SELECT receiver_id FROM pipeline.email_notification_log")[0]
        database.query("TRUNCATE pipeline.email_notification_log")
        database.settle_down()
        steps = one_trip_each(database, server.port)
        with fleet(
            bench.folder, database, PIPELINE_SMTP_URL=server.url, PIPELINE_STACK_EVERY="1h"
        ) as running:
            running.scheduler()
            running.worker(processes=1, threads=4)
            # The first one finds the processes starting, and is not counted.
            for item in range(count + 1):
                with transaction(database.connection) as cursor:
                    notify(
                        cursor,
                        receiver=receiver,
                        entity=("issue", str(item)),
                        data={
                            "verb": "updated",
                            "field": "state",
                            "old_value": "a",
                            "new_value": "b",
                        },
                        urgent=True,
                        broker=database.broker,
                    )
                committed.append(time.monotonic())
                wait_until(
                    lambda item=item: (
                        database.value(
                            "SELECT count(*) FROM pipeline.delivery WHERE state = 'sent'"
                        )
                        > item
                    ),
                    interval=0.02,
                )
                time.sleep(0.1)
        taken = server.close()
        warm_up = len(server.taken_at) - count
        assert taken == warm_up + count == count + 2, taken
        delays = sample(
            [
                (at - before) * 1000
                for before, at in zip(committed[1:], server.taken_at[warm_up:], strict=True)
            ]
        )
    floor = sum(step.median for step in steps.values())
    return Finding(
        name="latency",
        title="An urgent notification, from its commit to the server's 250",
        limit="listed",
        found=f"p50 {delays.median:.0f} ms, p99 {delays.percentile(0.99):.0f} ms",
        reached=None,
        columns=["", "ms"],
        rows=[
            ["p50", f"{delays.median:.1f}"],
            ["p90", f"{delays.percentile(0.9):.1f}"],
            ["p99", f"{delays.percentile(0.99):.1f}"],
            *([f"one {name}", step.told()] for name, step in steps.items()),
            ["one round trip of each step", f"{floor:.1f}"],
        ],
        about="Two messages ring one after the other: the row's own for a stacking pass, the "
        "pass's for a sender. Each is fetched by dramatiq-pg's consumer, which is what most of the "
        "time goes into; a sender also opens two connections to the database and one to the "
        "server.",
        numbers={"milliseconds": delays.values, "steps": {k: v.values for k, v in steps.items()}},
        plots=[
            Bars(
                "latency",
                "Urgent: from commit to 250",
                "ms",
                [
                    (name, value, value, value)
                    for name, value in (
                        ("one trip of each step", floor),
                        ("p50", delays.median),
                        ("p90", delays.percentile(0.9)),
                        ("p99", delays.percentile(0.99)),
                    )
                ],
            )
        ],
    )


def one_trip_each(database: Database, port: int) -> dict[str, Sample]:
    """What the steps cost by themselves, in milliseconds."""
    database.query("CREATE TEMPORARY TABLE trip (n integer)")

    def send() -> None:
        with smtplib.SMTP("127.0.0.1", port, local_hostname="bench.example") as server:
            server.sendmail("a@bench.example", ["b@bench.example"], b"Subject: x\r\n\r\nx\r\n")

    def listen() -> None:
        database.query("LISTEN bench")
        database.query("NOTIFY bench")
        database.connection.poll()

    database.query("CREATE TABLE trip_on_disk (n integer)")
    return {
        "query": _timed(lambda: database.query("SELECT 1")),
        "commit to disk": _timed(lambda: database.query("INSERT INTO trip_on_disk VALUES (1)")),
        "NOTIFY heard": _timed(listen),
        "mail over a new connection": _timed(send, 1),
    }


def _timed(call: Callable[[], object], times: int = 20) -> Sample:
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        call()
        taken.append((time.perf_counter() - started) * 1000)
    return sample(taken)
