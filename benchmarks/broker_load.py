"""Throughput, locks, memory and second runs under load."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg2

from benchmarks.broker_harness import KINDS, Bench, Peak, bench, lock_count, server, wait_for

#: line, kind, what was found
Finding = tuple[str, str, str]

#: Advisory locks enough for a stock consumer with a backlog: it takes one for each message.
MANY_LOCKS = {"max_locks_per_transaction": "6000"}


def throughput(quick: bool) -> Iterator[Finding]:
    """No-op messages a second from a backlog, counted over half a minute at most."""
    limit = 8.0 if quick else 30.0
    backlogs = [10_000, 50_000] if quick else [10_000, 50_000, 500_000]
    with server(**MANY_LOCKS) as postgres:
        for backlog in backlogs:
            for processes, prefetch in ((1, 0), (2, 0), (1, 256), (2, 256)):
                for kind in KINDS:
                    if kind == "stock" and prefetch and backlog > 10_000:
                        continue
                    with bench(postgres, kind) as made:
                        yield _one_throughput(made, backlog, processes, prefetch, limit)


def _one_throughput(
    made: Bench, backlog: int, processes: int, prefetch: int, limit: float
) -> Finding:
    made.fill(backlog)
    with Peak(lambda: lock_count(made.url)) as locks, Peak(made.memory_mb) as memory:
        made.start(processes=processes, prefetch=prefetch)
        if wait_for(lambda: made.run_count() > 0, 60) is None:
            return (_throughput_line(backlog, processes, prefetch), made.kind, "did not start")
        wait_for(lambda: made.run_count() >= backlog, limit, 0.5)
        rate = made.run_rate()
    return (
        _throughput_line(backlog, processes, prefetch),
        made.kind,
        f"{rate:,.0f}/s, {locks.value:,.0f} locks, {memory.value:.0f} MB",
    )


def _throughput_line(backlog: int, processes: int, prefetch: int) -> str:
    fetched = f", prefetch {prefetch}" if prefetch else ""
    return f"no-op, {backlog:,} waiting, {processes} × 8 threads{fetched}"


def cluster(quick: bool) -> Iterator[Finding]:
    """Whether others can still use a Postgres with default settings while 20,000 messages run."""
    with server() as postgres:
        for kind in KINDS:
            with bench(postgres, kind) as made:
                made.fill(20_000)
                refused = 0
                made.start()

                def probe(made: Bench = made) -> bool:
                    nonlocal refused
                    try:
                        lock_count(made.url)
                    except psycopg2.Error:
                        refused += 1
                    return made.run_count() >= 20_000

                took = wait_for(probe, 20 if quick else 60, 0.2)
                done = made.run_count()
                state = "all ran" if took else f"stuck at {done:,}"
                yield (
                    "20,000 waiting, Postgres at its default settings",
                    kind,
                    f"{state}; {refused} of others' connections refused",
                )


def slow_actor(quick: bool) -> Iterator[Finding]:
    """An actor of 100 ms on 8 threads: 80 a second is all there can be."""
    seconds = 6.0 if quick else 15.0
    with server(**MANY_LOCKS) as postgres:
        for kind in KINDS:
            with bench(postgres, kind) as made:
                made.fill(2000, "sleeper", 0.1)
                made.start()
                wait_for(lambda made=made: made.run_count() > 0, 30)  # type: ignore[misc]
                before = made.run_count()
                wait_for(lambda: False, seconds)
                rate = (made.run_count() - before) / seconds
                yield ("actor of 100 ms, 8 threads, of 80/s", kind, f"{rate:.0f}/s")


def steady(quick: bool) -> Iterator[Finding]:
    """Locks that stay behind while messages come at a steady rate."""
    count = 100 if quick else 400
    with server() as postgres:
        for kind in KINDS:
            with bench(postgres, kind) as made:
                made.start()
                actor = made.actor("noop")
                for number in range(count):
                    actor.send(number)
                    wait_for(lambda: False, 0.05)
                found = lock_count(made.url)
                yield (f"locks held after {count} messages, 20 a second", kind, f"{found:.0f}")


def twice(quick: bool) -> Iterator[Finding]:
    """Second runs and losses among many messages with 4 processes, nobody being killed."""
    count = 20_000 if quick else 200_000
    limit = 60.0 if quick else 240.0
    with server(max_locks_per_transaction="6000") as postgres:
        for kind in KINDS:
            with bench(postgres, kind) as made:
                made.fill(count)
                made.start(processes=4, threads=4)
                took = wait_for(
                    lambda made=made: made.run_count() >= count,  # type: ignore[misc]
                    limit,
                    0.5,
                )
                wait_for(
                    lambda made=made: set(made.states()) == {"done"},  # type: ignore[misc]
                    5 if took is None else 15,
                    0.5,
                )
                counts = made.counts()
                extra = sum(one - 1 for one in counts if one > 1)
                ran = sum(1 for one in counts if one)
                speed = f"{ran / took:,.0f}/s" if took else f"{ran / limit:,.0f}/s, not finished"
                yield (
                    f"{count:,} messages, 4 processes",
                    kind,
                    f"{extra} second runs among {ran:,}; {speed}; {made.states()}",
                )
