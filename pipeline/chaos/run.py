"""A chaos run: the plan is carried out, then peace, then the ledger."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import psycopg2

from pipeline.database import Cursor, connect, init, query, transaction

from .ground import Ground
from .ledger import Verdict, judge, read
from .plan import OURS_ALONE, TOWARDS_RELAY, Event, Kind, Mood, make_plan
from .processes import Fleet
from .proxy import Proxy
from .relay import MoodyRelay

RECEIVERS, ITEMS = 40, 10

#: Short times, so that what was broken is taken up again within the run.
SETTINGS = {
    "PIPELINE_MAIL_FROM": "Chaos <chaos@chaos.example>",
    "PIPELINE_STACK_EVERY": "1s",
    "PIPELINE_LEASE": "4s",
    "PIPELINE_CONNECT_TIMEOUT": "3s",
    "PIPELINE_COMMAND_TIMEOUT": "3s",
    "PIPELINE_DATA_TIMEOUT": "3s",
    "PIPELINE_REPLY_TIMEOUT": "4s",
    "PIPELINE_RELAY_PAUSE": "500ms",
    "PIPELINE_RELAY_PAUSE_CAP": "2s",
    "PIPELINE_RETRY_BASE": "1s",
    "PIPELINE_RETRY_CAP": "5s",
    # Chaos uses attempts up faster than anything that a delivery meets in years.
    "PIPELINE_MAX_ATTEMPTS": "100",
}

#: Seconds between two looks at what is due, and at how far it is.
STEP, LOOK = 0.05, 1.0

#: Of a thousand sessions so many are ended at once, and so many messages are meddled with.
SESSIONS_SHARE, MESSAGES = 0.3, 5

#: Seconds that a slow network takes for each packet, at the most.
LAG = 0.2


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it is: seconds since the start, and counts."""

    seconds: float
    is_peace: bool
    notifications: int
    unfinished: int
    taken: int
    done: dict[str, int]


@dataclass(slots=True)
class Report:
    """What was done, and what the ledger says.

    Attributes:
      minutes: That the faults lasted.
      done: What was done to it, how often.
      settled: Whether all was final in time.
      history: Each second: notifications written, mails taken.
      events: When what was done, in seconds.
    """

    seed: int
    minutes: float
    on_uncertain: str
    verdict: Verdict | None = None
    notifications: int = 0
    mails: int = 0
    starts: int = 0
    settled: bool = False
    settled_after: float = 0.0
    done: dict[str, int] = field(default_factory=dict)
    history: list[tuple[float, int, int]] = field(default_factory=list)
    events: list[tuple[float, str]] = field(default_factory=list)


class Run:
    """One run; `carry_out` it once.

    Parameters:
      ground: Where; it is started and closed by the run.
      folder: For logs and what the applications write down.
      rate: Notifications a second.
      faults: Faults in proportion to the usual ones.
      patience: Seconds that everything has to become final, once there is peace.
      stop: Set to bring peace early.
    """

    def __init__(
        self,
        ground: Ground,
        folder: Path,
        *,
        seed: int,
        minutes: float,
        rate: float = 50.0,
        faults: float = 1.0,
        on_uncertain: str = "resend",
        patience: float = 300.0,
        stop: threading.Event | None = None,
        on_progress: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        self.ground = ground
        self.folder = folder
        self.rate = rate
        self.patience = patience
        self.stop = stop or threading.Event()
        self.on_progress = on_progress
        self.report = Report(seed, minutes, on_uncertain)
        self._plan = make_plan(
            seed,
            minutes * 60,
            rate=faults,
            without=frozenset() if ground.may_restart else OURS_ALONE,
        )
        self._done: Counter[str] = Counter()
        self._undo: list[tuple[float, Callable[[], None]]] = []
        self._looked_at = 0.0
        self._counts = (0, 0)

    def carry_out(self) -> Report:
        """All of it.

        Raises:
          EmbeddedPostgresError, psycopg2.Error: There is no database to be had.
        """
        with ExitStack() as parts:
            self.ground.start()
            parts.callback(self.ground.close)
            with closing(connect(self.ground.url)) as connection:
                init(connection)
                with transaction(connection) as cursor:
                    cursor.execute(query("chaos_recipients"), {"count": RECEIVERS})
            self._relay = parts.enter_context(MoodyRelay(self.report.seed))
            self._database_proxy = parts.enter_context(Proxy(self.ground.connect))
            self._relay_proxy = parts.enter_context(Proxy(self._to_relay))
            self._fleet = Fleet(
                self._environment(), self.folder / "logs", self.folder / "written",
                rate=self.rate, receivers=RECEIVERS, items=ITEMS,
            )  # fmt: skip
            parts.callback(self._fleet.stop)
            self._started_at = time.monotonic()
            self._break_things()
            self._make_peace()
            self._wait_until_final()
            self._fleet.stop()
            self._close_the_books()
        return self.report

    def _environment(self) -> dict[str, str]:
        others = {
            name: value for name, value in os.environ.items() if not name.startswith("PIPELINE_")
        }
        return others | SETTINGS | {
            "PIPELINE_DATABASE_URL": self.ground.url_through(self._database_proxy.port),
            "PIPELINE_SMTP_URL": f"smtp://127.0.0.1:{self._relay_proxy.port}",
            "PIPELINE_ON_UNCERTAIN": self.report.on_uncertain,
        }  # fmt: skip

    def _to_relay(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._relay.port), 5)

    @property
    def _now(self) -> float:
        return time.monotonic() - self._started_at

    def _break_things(self) -> None:
        events = iter(self._plan)
        event = next(events, None)
        while not self.stop.is_set() and self._now < self.report.minutes * 60:
            self._fleet.supervise()
            while event is not None and event.at <= self._now:
                self._do(event)
                event = next(events, None)
            self._undo_what_is_over()
            self._look()
            self.stop.wait(STEP)
        self.report.minutes = round(self._now / 60, 2)

    def _make_peace(self) -> None:
        for _, undo in self._undo:
            undo()
        self._undo.clear()
        self._fleet.stop_producers()

    def _wait_until_final(self) -> None:
        peace_at = self._now
        while self._now - peace_at < self.patience:
            self._fleet.supervise()
            self._look(is_peace=True)
            if self._counts[1] == 0 and self._looked_at > peace_at:
                self.report.settled = True
                break
            time.sleep(STEP)
        self.report.settled_after = round(self._now - peace_at, 1)

    def _close_the_books(self) -> None:
        report = self.report
        with closing(connect(self.ground.url)) as connection:
            ledger = read(
                connection, self.folder / "written", self._relay.taken, self._relay.refused
            )
        report.verdict = judge(ledger, on_uncertain=report.on_uncertain)
        report.notifications = len(ledger.rows)
        report.mails = len(ledger.taken)
        report.starts = self._fleet.start_count
        report.done = dict(self._done)

    def _look(self, *, is_peace: bool = False) -> None:
        if self._now - self._looked_at < LOOK:
            return
        with suppress(psycopg2.Error), closing(connect(self.ground.url)) as connection:
            with transaction(connection) as cursor:
                cursor.execute(query("chaos_progress"))
                row = cursor.fetchone()
                assert row is not None
            self._counts = (row[0], row[1] + row[2])
            self._looked_at = self._now
        taken = self._relay.taken_count
        self.report.history.append((round(self._now, 1), self._counts[0], taken))
        self.on_progress(Progress(self._now, is_peace, *self._counts, taken, dict(self._done)))

    def _undo_what_is_over(self) -> None:
        over = [undo for until, undo in self._undo if until <= self._now]
        self._undo = [each for each in self._undo if each[0] > self._now]
        for undo in over:
            undo()

    def _later(self, seconds: float, undo: Callable[[], None]) -> None:
        self._undo.append((self._now + seconds, undo))

    def _do(self, event: Event) -> None:
        done = self._DOERS[event.kind](self, event)
        if done:
            name = event.mood.value if event.kind is Kind.MOOD else event.kind.value
            self._done[name] += done
            self.report.events.append((round(self._now, 2), event.kind.value))

    def _kill(self, event: Event) -> int:
        return int(self._fleet.kill(event.share) is not None)

    def _freeze(self, event: Event) -> int:
        pid = self._fleet.freeze(event.share)
        if pid is None:
            return 0
        self._later(event.seconds, lambda: self._fleet.thaw(pid))
        return 1

    def _restart(self, _event: Event) -> int:
        self.ground.restart()
        return 1

    def _terminate(self, _event: Event) -> int:
        return self._meddle("chaos_terminate", {"share": SESSIONS_SHARE})

    def _cut(self, event: Event) -> int:
        proxy = self._proxy(event)
        proxy.cut()
        self._later(event.seconds, proxy.mend)
        return 1

    def _stall(self, event: Event) -> int:
        proxy = self._proxy(event)
        proxy.stall()
        self._later(event.seconds, proxy.mend)
        return 1

    def _half_open(self, event: Event) -> int:
        proxy = self._proxy(event)
        proxy.half_open()
        self._later(event.seconds, proxy.mend)
        return 1

    def _delay_network(self, event: Event) -> int:
        proxy = self._proxy(event)
        proxy.delay(LAG * event.share)
        self._later(event.seconds, proxy.mend)
        return 1

    def _proxy(self, event: Event) -> Proxy:
        return self._relay_proxy if event.kind in TOWARDS_RELAY else self._database_proxy

    def _change_mood(self, event: Event) -> int:
        def be_well() -> None:
            if self._relay.mood is event.mood:
                self._relay.mood = Mood.WELL

        self._relay.mood = event.mood
        self._later(event.seconds, be_well)
        return 1

    def _duplicate(self, _event: Event) -> int:
        return self._meddle("chaos_duplicate", {"limit": MESSAGES})

    def _delete(self, _event: Event) -> int:
        return self._meddle("chaos_delete", {"limit": MESSAGES})

    def _delay(self, event: Event) -> int:
        milliseconds = int(event.seconds * 1000)
        return self._meddle("chaos_delay", {"limit": MESSAGES, "milliseconds": milliseconds})

    def _meddle(self, name: str, parameters: dict[str, object]) -> int:
        """Run a statement that counts what it has done, if the database is there."""
        with (
            suppress(psycopg2.Error),
            closing(connect(self.ground.url)) as connection,
            transaction(connection) as cursor,
        ):
            return _counted(cursor, name, parameters)
        return 0

    _DOERS: ClassVar = {
        Kind.KILL: _kill,
        Kind.FREEZE: _freeze,
        Kind.TERMINATE: _terminate,
        Kind.RESTART: _restart,
        Kind.CUT_DATABASE: _cut,
        Kind.STALL_DATABASE: _stall,
        Kind.HALF_DATABASE: _half_open,
        Kind.DELAY_DATABASE: _delay_network,
        Kind.CUT_RELAY: _cut,
        Kind.STALL_RELAY: _stall,
        Kind.HALF_RELAY: _half_open,
        Kind.DELAY_RELAY: _delay_network,
        Kind.MOOD: _change_mood,
        Kind.DUPLICATE: _duplicate,
        Kind.DELETE: _delete,
        Kind.DELAY: _delay,
    }


def _counted(cursor: Cursor, name: str, parameters: dict[str, object]) -> int:
    cursor.execute(query(name).replace("{queue}", "dramatiq.queue"), parameters)
    row = cursor.fetchone()
    return int(row[0]) if row is not None else 0
