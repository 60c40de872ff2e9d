"""What a mail costs the database: commits, statements, WAL; and where the time goes."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from benchmarks.bench import Bench, Database
from benchmarks.measuring import Bars, Finding, Sample, number, sample
from benchmarks.processes import sink
from benchmarks.sending import prepared
from pipeline import attempting, reading, turn
from pipeline.database import query, transaction
from pipeline.delivery import Claimed
from pipeline.lane import Lane, Phase
from pipeline.listening import Listener
from pipeline.sending import Sender
from pipeline.stacking import Place, claim_parameters

STATEMENTS = r"""
SELECT calls, wal_bytes::float8, total_exec_time + total_plan_time, rows,
    regexp_replace(query, '\s+', ' ', 'g')
FROM pg_stat_statements
WHERE calls > 0 AND dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
"""

#: Bytes of a page.
PAGE = 8192

COUNTERS = """
SELECT xact_commit, (SELECT wal_bytes FROM pg_stat_wal)::float8,
    (SELECT coalesce(sum(fsyncs), 0) FROM pg_stat_io WHERE object = 'wal')::float8,
    (SELECT wal_fpi FROM pg_stat_wal)::float8
FROM pg_stat_database
WHERE datname = current_database()
"""

#: By what a statement is known, and why a mail can't do without it.
ARGUMENTS = {
    "WITH marked AS": "the markers: committed before the final dots, or a crash after one would "
    "look like one before it (P4). Wait for the disk.",
    "WITH told AS": "the outcomes: deliveries, attempts and the rows' `sent_at`, as soon as the "
    "replies are there. Until they commit a mail is in the uncertain window. Wait for the disk.",
    "WITH begun AS": "the next attempts' beginnings: counted before they are tried, so that one "
    "that kills its worker runs out. In the transaction of the outcomes, so they cost no commit.",
    "AS wanted (id": "recipient and item: read when the mail is sent, not when it was stacked; for "
    "many deliveries at once.",
    "bytes_so_far": "the notifications: read when the mail is sent; for many at once.",
    "FROM pipeline.recipient WHERE id": "names of the people in it: for many at once.",
    "FROM due WHERE": "the claim: a chunk of 25 deliveries a sender at once.",
}

#: Senders that share a turn, and how many of them the table is for.
TURNS = (1, 8)


def database_work(bench: Bench) -> Finding:
    """The senders of a process over some deliveries, counted by the database."""
    mails = bench.sized(2_000, 200)
    counted = {senders: _counted(bench, mails, senders) for senders in TURNS}
    (commits, wal, syncs, pages), statements, windows = counted[TURNS[-1]]
    (one_commits, one_wal, _, one_pages), _, one_windows = counted[1]
    grouped: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    why = {}
    for calls, wal_bytes, milliseconds, _, text in statements:
        name, reason = _named(text)
        why[name] = reason
        for place, value in enumerate((calls, wal_bytes, milliseconds)):
            grouped[name][place] += float(value) / mails
    shown = sorted(grouped.items(), key=lambda item: -item[1][2])
    count = sum(calls for calls, *_ in grouped.values())
    return Finding(
        name="work",
        title="The database's work for one mail",
        limit="listed, and each one argued for",
        found=f"{commits:.2f} commits, {count:.1f} statements, {number(wal)} bytes of WAL with "
        f"{pages:.2f} whole pages among them, without which it is {number(wal - pages * PAGE)}; "
        f"by a sender that is alone {one_commits:.2f} commits and "
        f"{number(one_wal - one_pages * PAGE)} bytes. From marker to outcome "
        f"{_told(windows)} ms, alone {_told(one_windows)} ms",
        reached=None,
        columns=["", "times a mail", "WAL bytes", "ms", "why"],
        rows=[
            [name, f"{calls:.2f}", number(wal_bytes, 0), f"{milliseconds:.3f}", why[name]]
            for name, (calls, wal_bytes, milliseconds) in shown
        ]
        + [
            [
                "in all",
                f"{count:.2f}",
                number(wal, 0),
                "",
                f"{commits:.2f} commits, {syncs:.2f} flushes to disk",
            ]
        ],
        about=f"{mails:,} mails of five notifications by {TURNS[-1]} senders of one process, by "
        "pg_stat_statements, pg_stat_wal and pg_stat_database. From its marker until its outcome "
        "is written a mail is uncertain, should its worker die: sharing a transaction must not "
        "make that longer. The first change of a page after a "
        "checkpoint writes the whole page: after five minutes without one there are few.",
        numbers={
            "commits": commits,
            "wal_bytes": wal,
            "flushes": syncs,
            "whole_pages": pages,
            "alone": counted[1][0],
            "window_seconds": {
                str(senders): {"p50": found.median, "p99": found.percentile(0.99)}
                for senders, (_, _, found) in counted.items()
            },
            "statements": dict(grouped),
        },
    )


def _told(windows: Sample) -> str:
    return f"{windows.median * 1000:.1f} (p99 {windows.percentile(0.99) * 1000:.1f})"


@contextmanager
def _uncertain_for() -> Iterator[list[float]]:
    """For how many seconds each mail is uncertain: from its marker until its outcome is written."""
    began: dict[str, float] = {}
    found: list[float] = []
    answer, wrote = Lane.answer, turn.Turn._wrote

    def answered(lane: Lane, told: bool) -> None:
        if lane.phase is Phase.ASKING and told:
            began[lane.claimed.id] = time.perf_counter()
        answer(lane, told)

    def written(self: turn.Turn, lanes: Sequence[Lane], settled: Sequence[Claimed]) -> None:
        now = time.perf_counter()
        found.extend(now - began.pop(each.id) for each in settled if each.id in began)
        wrote(self, lanes, settled)

    with patch.object(Lane, "answer", answered), patch.object(turn.Turn, "_wrote", written):
        yield found


def _counted(bench: Bench, mails: int, senders: int) -> tuple[tuple[float, ...], list[Any], Sample]:
    """Commits, WAL bytes, flushes and whole pages a mail; the statements; and how long each mail
    was uncertain, in seconds.
    """
    with (
        sink() as server,
        bench.database(smtp_url=server.url, slice=_long(), senders=senders) as database,
    ):
        prepared(database, mails)
        database.query("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        database.query("SELECT pg_stat_statements_reset()")
        before = _counters(database)
        with _uncertain_for() as windows:
            sent = send_together(database, senders)
        assert sent == mails, sent
        after = _counters(database)
        spent = tuple((b - a) / mails for a, b in zip(before, after, strict=True))
        return spent, database.query(STATEMENTS), sample(windows)


def send_together(database: Database, senders: int) -> int:
    """Be so many senders of one process until nothing waits; how many mails they sent."""
    sender = Sender(database.url, database.settings, database.doorbells)
    with ThreadPoolExecutor(senders) as pool:
        outcomes = pool.map(lambda _: sender.answer(), range(senders))
        return sum(each.get("sent", 0) for each in outcomes)


def _long() -> Any:
    from datetime import timedelta

    return timedelta(minutes=10)


def _counters(database: Database) -> tuple[float, ...]:
    # The session that did the work reports when it ends, or after a second.
    time.sleep(1.2)
    return tuple(float(value) for value in database.query(COUNTERS)[0])


def _named(text: str) -> tuple[str, str]:
    for part, told in ARGUMENTS.items():
        if part in text:
            name, _, reason = told.partition(": ")
            return name, reason
    if text.startswith(("SET ", "BEGIN", "COMMIT")):
        return "BEGIN, COMMIT, limits of time", "they do no work."
    return "all else", "once a chunk or once a slice: the place, the relay's state, leases."


def profile(bench: Bench) -> Finding:
    """Where the time of one mail and of one pass goes."""
    mails = bench.sized(1_000, 200)
    spent = _mail_steps(bench, mails)
    parts = _pass_steps(bench)
    total = sum(spent.values())
    return Finding(
        name="profile",
        title="Where the time goes",
        limit="a picture",
        found=f"a mail: {', '.join(f'{name} {part / total:.0%}' for name, part in spent.items())}",
        reached=None,
        columns=[f"one mail, by {TURNS[-1]} senders of a process", "ms", "share"],
        rows=[
            [name, f"{seconds / mails * 1000:.3f}", f"{seconds / total:.0%}"]
            for name, seconds in spent.items()
        ]
        + [[f"a chunk of a pass: {name}", f"{ms:.1f}", ""] for name, ms in parts.items()],
        about="Of a mail: the time between a step's beginning and its end, waiting included. Of a "
        "pass: one chunk of 2,000 stacks, by EXPLAIN ANALYZE; each step by itself.",
        numbers={"mail_seconds": spent, "mails": mails, "pass_milliseconds": parts},
        plots=[
            Bars(
                "profile-mail",
                "One mail: where the time goes",
                "ms",
                [(name, seconds / mails * 1000, 0.0, 0.0) for name, seconds in spent.items()],
            ),
            Bars(
                "profile-pass",
                "One chunk of a pass, 2,000 stacks: where the time goes",
                "ms",
                [(name, ms, 0.0, 0.0) for name, ms in parts.items()],
            ),
        ],
    )


def _mail_steps(bench: Bench, mails: int) -> dict[str, float]:
    spent: dict[str, float] = defaultdict(float)

    def timed(owner: Any, name: str, step: str) -> Callable[[], None]:
        original = getattr(owner, name)

        def around(*arguments: Any, **options: Any) -> Any:
            started = time.perf_counter()
            try:
                return original(*arguments, **options)
            finally:
                spent[step] += time.perf_counter() - started

        setattr(owner, name, around)
        return lambda: setattr(owner, name, original)

    senders = TURNS[-1]
    with (
        sink() as server,
        bench.database(smtp_url=server.url, slice=_long(), senders=senders) as database,
    ):
        prepared(database, mails)
        undo = [
            timed(reading.Ahead, "stack", "reading"),
            timed(attempting, "prepare", "digest and rendering"),
            timed(turn, "mark", "marker"),
            timed(turn.Turn, "_mark", "marker and dot"),
            timed(turn.Turn, "_start", "beginning"),
            timed(turn.Turn, "_settle", "outcome"),
            timed(Listener, "listen", "listening"),
        ]
        started = time.perf_counter()
        send_together(database, senders)
        total = time.perf_counter() - started
        for each in undo:
            each()
    made = spent["reading"] + spent["digest and rendering"]
    steps = {
        "reading": spent["reading"],
        "digest and rendering": spent["digest and rendering"],
        "talk to the servers, waiting for them": spent["beginning"]
        - made
        + spent["listening"]
        + spent["marker and dot"]
        - spent["marker"],
        "markers, on disk": spent["marker"],
        "outcomes, and the next attempts, on disk": spent["outcome"],
    }
    steps["claims, and all else"] = max(total - sum(steps.values()), 0.0)
    return dict(steps)


def _pass_steps(bench: Bench) -> dict[str, float]:
    with bench.database() as database:
        database.fill(bench.sized(100_000, 10_000))
        database.settle_down()
        with transaction(database.connection) as cursor:
            cursor.execute(query("walk_plan"))
            cursor.execute(
                "EXPLAIN (ANALYZE, FORMAT JSON) " + query("stack_claim"),
                claim_parameters(database.settings, urgent_only=False, place=Place()),
            )
            found = cursor.fetchone()
            assert found is not None
    (explained,) = json.loads(found[0]) if isinstance(found[0], str) else found[0]
    own: dict[str, float] = {}
    _collect(explained["Plan"], own, None)
    names = {
        "grouped": "finding the stacks",
        "bounded": "finding the stacks",
        "locked": "locking them",
        "stack": "looking for waiting deliveries",
        "claimed": "claiming the rows",
        "counted": "claiming the rows",
        "created": "inserting the deliveries",
        "joined": "joining",
    }
    steps: dict[str, float] = defaultdict(float)
    for name, ms in own.items():
        steps[names.get(name, "the rest")] += ms
    for trigger in explained.get("Triggers", []):
        steps["triggers"] += trigger["Time"]
    steps["planning"] = explained["Planning Time"]
    return {name: ms for name, ms in steps.items() if ms >= 0.05}


def _collect(node: dict[str, Any], own: dict[str, float], within: str | None) -> float:
    """Add each node's own time to the CTE that it is in."""
    name = node.get("Subplan Name", "")
    within = name.removeprefix("CTE ") if name.startswith("CTE ") else within
    below = sum(_collect(child, own, within) for child in node.get("Plans", []))
    all_of_it = node["Actual Total Time"] * node["Actual Loops"]
    # A scan of a CTE takes the time of the CTE when it is the first to ask for it.
    alone = max(all_of_it - below, 0.0)
    if node["Node Type"] == "CTE Scan":
        alone = 0.0
    own[within or "the rest"] = own.get(within or "the rest", 0.0) + alone
    return all_of_it if not name.startswith("CTE ") else 0.0
