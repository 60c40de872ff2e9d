"""Dead workers, delays, poison, small pools and restarts of Postgres."""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress

import psycopg2

from benchmarks.broker_harness import KINDS, Bench, bench, close, rows, server, wait_for
from benchmarks.broker_load import MANY_LOCKS, Finding
from pipeline.outbox import enqueue


def recovery(quick: bool) -> Iterator[Finding]:
    """Seconds until the message of a killed worker runs again, with idle and busy survivors."""
    with server(**MANY_LOCKS) as postgres:
        for busy in (False, True):
            for kind in KINDS:
                kills = (3 if quick else 20) if kind == "mended" else (1 if quick else 2)
                limit = 20.0 if kind == "mended" or quick else 60.0
                times = []
                for _ in range(kills):
                    with bench(postgres, kind) as made:
                        times.append(_one_recovery(made, busy=busy, limit=limit))
                yield (
                    f"a killed worker's message runs again, survivor {'busy' if busy else 'idle'}",
                    kind,
                    _summary(times, limit),
                )


def _one_recovery(made: Bench, *, busy: bool, limit: float) -> float | None:
    actor = made.actor("sleeper")
    doomed = made.start(threads=1)
    actor.send(1, 120)
    wait_for(lambda: made.run_count() == 1, 20)
    made.start(threads=4)
    if busy:
        for number in range(10, 2000):
            actor.send(number, 0.1)
    wait_for(lambda: made.run_count() > 10, 20 if busy else 2)
    made.kill(doomed)
    took = wait_for(lambda: made.counts()[1] == 2, limit)
    close(actor.broker)
    return took


def _summary(times: list[float | None], limit: float) -> str:
    found = sorted(one for one in times if one is not None)
    if not found:
        return f"not within {limit:.0f} s, {len(times)} of {len(times)} times"
    missed = len(times) - len(found)
    text = f"median {statistics.median(found):.1f} s, most {found[-1]:.1f} s of {len(times)} kills"
    return text + (f"; {missed} not within {limit:.0f} s" if missed else "")


def delays(quick: bool) -> Iterator[Finding]:
    """How late ten due messages are behind thousands of far ones, and a retry without a delay."""
    del quick
    with server(**MANY_LOCKS) as postgres:
        for kind in KINDS:
            with bench(postgres, kind) as made:
                actor = made.actor("noop")
                with closing(psycopg2.connect(made.url)) as shop, shop.cursor() as cursor:
                    far = [actor.message(n) for n in range(100, 8_100)]
                    enqueue(cursor, *far, delay=3_600_000, broker=actor.broker)
                    shop.commit()
                    made.start(threads=8)
                    wait_for(lambda: False, 4)
                    due = [actor.message(n) for n in range(10)]
                    enqueue(cursor, *due, delay=2_000, broker=actor.broker)
                    shop.commit()
                took = wait_for(lambda made=made: made.run_count() >= 10, 30)  # type: ignore[misc]
                late = "not within 30 s" if took is None else f"{took - 2:.2f} s late"
                yield ("10 messages due in 2 s behind 8,000 far ones", kind, late)
            with bench(postgres, kind) as made:
                made.start()
                again = made.actor("again_at_once")
                wait_for(lambda: False, 2)
                again.send(7)
                took = wait_for(
                    lambda made=made: made.counts()[7:8] == b"\x02",  # type: ignore[misc]
                    60,
                )
                found = "not within 60 s" if took is None else f"{took:.2f} s"
                yield ("Retry(delay=0) runs again after", kind, found)


def poison(quick: bool) -> Iterator[Finding]:
    """NUL in an argument when sending, and in an exception's text when a worker fails."""
    limit = 20.0 if quick else 120.0
    with server() as postgres:
        for kind in KINDS:
            with bench(postgres, kind) as made:
                actor = made.actor("noop")
                started = time.monotonic()
                raised: list[str] = []

                def send(actor: object = actor, raised: list[str] = raised) -> None:
                    try:
                        actor.send("\x00")  # type: ignore[attr-defined]
                    except Exception as error:  # noqa: BLE001 (whatever it is, it is the finding)
                        raised.append(type(error).__name__)

                thread = threading.Thread(target=send, daemon=True)
                thread.start()
                thread.join(limit)
                took = time.monotonic() - started
                said = f"{raised[0]} after {took:.2f} s" if raised else f"blocks {limit:.0f} s"
                yield ("send with NUL in an argument", kind, said)
            with bench(postgres, kind) as made:
                made.start(threads=1)
                actor = made.actor("poison")
                actor.send(3)
                wait_for(lambda made=made: made.run_count() > 0, 20)  # type: ignore[misc]
                settled = wait_for(
                    lambda made=made: "rejected" in made.states(),  # type: ignore[misc]
                    limit,
                    0.05,
                )
                said = f"not within {limit:.0f} s" if settled is None else f"{settled:.2f} s"
                yield ("NUL in an exception's text: retried and rejected after", kind, said)


def pool(quick: bool) -> Iterator[Finding]:
    """32 threads that all finish at once, with the 16 connections of a default pool."""
    count = 300 if quick else 1000
    with server() as postgres:
        for kind in KINDS:
            with bench(postgres, kind) as made:
                made.fill(count, "sleeper", 0.05)
                made.start(threads=32)
                most = 0

                def done(made: Bench = made) -> bool:
                    nonlocal most
                    ((now,),) = rows(
                        made.url,
                        "SELECT count(*) FROM pg_stat_activity"
                        " WHERE datname = current_database() AND pid <> pg_backend_pid()",
                    )
                    most = max(most, now)
                    return made.states() == {"done": count}

                took = wait_for(done, 30 if quick else 60, 0.1)
                states = made.states()
                found = f"all done in {took:.1f} s" if took else f"left {states}"
                extra = sum(one - 1 for one in made.counts() if one > 1)
                yield (
                    f"{count} messages on 32 threads, pool of 16",
                    kind,
                    f"{found}; {extra} second runs; {most} connections",
                )


def restart(quick: bool) -> Iterator[Finding]:
    """An immediate restart of Postgres in the middle of a backlog."""
    count = 4_800
    limit = 30.0 if quick else 60.0
    for kind in KINDS:
        with server(**MANY_LOCKS) as postgres, bench(postgres, kind) as made:
            made.fill(count, "sleeper", 0.005)
            made.start(processes=2)
            wait_for(lambda made=made: made.run_count() > count // 4, 30)  # type: ignore[misc]
            pid = postgres.pid
            assert pid is not None
            os.kill(pid, signal.SIGQUIT)
            wait_for(lambda postgres=postgres: postgres.pid is None, 20)  # type: ignore[misc]
            postgres.start()

            def settled(made: Bench = made) -> bool:
                with suppress(psycopg2.Error):
                    return made.states() == {"done": count}
                return False

            took = wait_for(settled, limit, 0.2)
            counts = made.counts()
            extra = sum(one - 1 for one in counts if one > 1)
            missing = count - sum(1 for one in counts if one)
            found = f"all done in {took:.1f} s" if took else f"left {made.states()}"
            yield (
                f"immediate restart of Postgres under {count:,} messages",
                kind,
                f"{found}; {missing} never ran; {extra} second runs",
            )
