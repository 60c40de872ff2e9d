"""The same dispatch the usual way: rows claimed, and one message enqueued for each stack.

Procrastinate, PgQueuer and Celery are taken when they are installed, `pip install procrastinate
pgqueuer celery redis`, and Celery if there is a `redis-server` too.
"""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import dramatiq
from dramatiq_pg import PostgresBroker

from benchmarks.bench import ROWS_PER_STACK, Bench, Database
from benchmarks.dispatch import pass_seconds
from benchmarks.measuring import Bars, Finding, Sample, sample, watch

REDIS = shutil.which("redis-server")

#: The claim of the rows, the same for all of them.
CLAIM = """
UPDATE pipeline.email_notification_log
SET processed_at = now(), delivery_id = gen_random_uuid()
WHERE processed_at IS NULL
RETURNING receiver_id, entity_name, entity_identifier, id::text
"""


def peers(bench: Bench) -> Finding:
    """Everything that waits, claimed and dispatched."""
    rows = bench.sized(20_000, 1_000)
    ways: dict[str, Any] = {
        "a pass": lambda database: pass_seconds(database, rows)[0],
        "dramatiq-pg, enqueue for each stack": through_dramatiq,
    }
    missing = []
    for name, way in (("procrastinate", through_procrastinate), ("pgqueuer", through_pgqueuer)):
        if importlib.util.find_spec(name) and importlib.util.find_spec("psycopg"):
            ways[f"{name}, all in one call"] = way
        else:
            missing.append(name)
    if importlib.util.find_spec("celery") and importlib.util.find_spec("redis") and REDIS:
        ways["celery with Redis, send_task for each stack"] = through_celery
    else:
        missing.append("celery with Redis")
    rates: dict[str, Sample] = {}
    for name, way in ways.items():
        taken = []
        for _ in range(bench.repeat):
            with bench.database() as database:
                database.fill(rows)
                database.settle_down()
                taken.append(rows / way(database))
        rates[name] = sample(taken)
    ours = rates["a pass"].median
    return Finding(
        name="peers",
        title="The same dispatch through other queues",
        limit="listed",
        found=", ".join(
            f"{ours / rate.median:.1f} × {name.partition(',')[0]}"
            for name, rate in rates.items()
            if name != "a pass"
        ),
        reached=None,
        columns=["", "rows/s"],
        rows=[[name, rate.told()] for name, rate in rates.items()],
        about=f"{rows:,} rows in stacks of {ROWS_PER_STACK}. The others claim all rows with one "
        "UPDATE, group them in Python and enqueue a job for each stack; they write no delivery and "
        "take no locks. dramatiq-pg's enqueue opens a transaction of its own for each message, "
        "after the claim: a crash in between loses them. So does Celery's send, whose queue "
        "is another server, here without anything written to disk before it answers."
        + (f" Not installed in this run: {', '.join(missing)}." if missing else ""),
        numbers={name: rate.values for name, rate in rates.items()},
        plots=[
            Bars(
                "peers",
                "Dispatch: rows a second",
                "rows/s",
                [(name, rate.median, rate.low, rate.high) for name, rate in rates.items()],
            )
        ],
    )


@contextmanager
def redis() -> Iterator[str]:
    """A Redis with its default settings, on a port of its own: its URL."""
    import redis as client

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(
            [str(REDIS), "--port", str(port), "--bind", "127.0.0.1", "--dir", folder],
            stdout=subprocess.DEVNULL,
        )
        try:
            asking = client.Redis(port=port)
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                with suppress(client.ConnectionError):
                    asking.ping()
                    break
                time.sleep(0.05)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.kill()
            server.wait()


def through_celery(database: Database) -> float:
    """One `send_task` a stack, over one kept connection."""
    from celery import Celery

    with redis() as url:
        app = Celery("peers", broker=url)
        with app.producer_pool.acquire(block=True) as producer:
            app.send_task("warm", producer=producer)
            with watch() as taken:
                for stack, ids in grouped(database).items():
                    app.send_task("send", args=(*stack, ids), producer=producer)
        app.close()
    return taken.seconds


def grouped(database: Database) -> dict[tuple[str, str, str], list[str]]:
    """The claim, grouped by stack."""
    stacks: dict[tuple[str, str, str], list[str]] = {}
    for *stack, id_ in database.query(CLAIM):
        stacks.setdefault((stack[0], stack[1], stack[2]), []).append(id_)
    return stacks


def through_dramatiq(database: Database) -> float:
    """One `enqueue` a stack."""
    broker: PostgresBroker = database.broker
    broker.declare_queue("peers")
    with watch() as taken:
        for stack, ids in grouped(database).items():
            broker.enqueue(
                dramatiq.Message(
                    queue_name="peers",
                    actor_name="send",
                    args=(*stack, ids),
                    kwargs={},
                    options={},
                )
            )
    return taken.seconds


def through_procrastinate(database: Database) -> float:
    """One deferral of a batch."""
    import procrastinate

    connector = procrastinate.SyncPsycopgConnector(conninfo=database.url)
    app = procrastinate.App(connector=connector)

    def never_run(**_: object) -> None:
        pass

    send: Any = app.task(name="send")(never_run)
    with app.open():
        app.schema_manager.apply_schema()
        with watch() as taken:
            jobs = [
                {"receiver": stack[0], "entity": list(stack[1:]), "ids": ids}
                for stack, ids in grouped(database).items()
            ]
            send.batch_defer(*jobs)
    return taken.seconds


def through_pgqueuer(database: Database) -> float:
    """One `enqueue` of all."""
    return asyncio.run(_through_pgqueuer(database))


async def _through_pgqueuer(database: Database) -> float:
    import json

    import psycopg
    from pgqueuer.db import PsycopgDriver
    from pgqueuer.queries import Queries

    connection = await psycopg.AsyncConnection.connect(database.url, autocommit=True)
    async with connection:
        queries = Queries(PsycopgDriver(connection))
        await queries.install()
        with watch() as taken:
            payloads = [
                json.dumps([*stack, ids]).encode() for stack, ids in grouped(database).items()
            ]
            await queries.enqueue(["send"] * len(payloads), list(payloads), [0] * len(payloads))
    return taken.seconds
