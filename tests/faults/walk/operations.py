"""What is walked through: scenes that are set, and real code that then runs in the child."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import psycopg2
from dramatiq import Broker

from pipeline import Pipeline, Settings, delivery, notify
from pipeline.attempting import attempt, mark
from pipeline.database import connect, init, transaction
from pipeline.doorbells import Doorbells
from pipeline.prepared import Prepared as Statements
from pipeline.process import make_broker
from pipeline.reading import Ahead, Closing
from pipeline.recovery import Recovery
from pipeline.scheduling import Schedule
from pipeline.sending import Sender
from pipeline.settling import write_outcome
from pipeline.smtp import Relay, Session, Timeouts
from pipeline.smtp.dialogue import run
from pipeline.stacking import run_pass
from tests.faults.walk.scenes import SCENES, Scene
from tests.support.installation import QUICK

LEASE = timedelta(seconds=30)


@dataclass(frozen=True)
class Prepared:
    """What a child has before its calls are counted."""

    settings: Settings
    broker: Broker
    message_id: str | None

    @property
    def url(self) -> str:
        return self.settings.url

    @property
    def doorbells(self) -> Doorbells:
        return Doorbells(self.broker, senders=self.settings.senders)


def settings_for(url: str, smtp_url: str, policy: str) -> Settings:
    """The settings of every part of the walk."""
    return replace(
        QUICK,
        database_url=url,
        smtp_url=smtp_url,
        on_uncertain=policy,
        lease=LEASE,
        slice=timedelta(seconds=60),
        stack_every=timedelta(milliseconds=10),
        stack_limit=2,
        row_limit=4,
        chunk=2,
        senders=2,
        keep=timedelta(days=30),
        connect_timeout=timedelta(seconds=5),
        command_timeout=timedelta(seconds=5),
    )


def prepare(request: dict[str, Any]) -> Prepared:
    settings = settings_for(request["url"], request["smtp_url"], request["policy"])
    return Prepared(settings, make_broker(settings), request["message_id"])


@dataclass(frozen=True)
class Operation:
    """One thing that is walked through.

    Parameters:
      run: What the child does.
      scene: What is there before it.
      policies: Both where a reply may be lost.
      doorbell: The actor whose message the child answers.
      talks: Whether it talks to the relay.
      is_orderly: Whether its calls come in the same order each time.
    """

    run: Callable[[Prepared], object]
    scene: Scene
    policies: tuple[str, ...] = ("resend",)
    doorbell: str | None = None
    talks: bool = False
    is_orderly: bool = True
    prepare: Callable[[dict[str, Any]], Prepared] = field(default=prepare)


def stack(prepared: Prepared) -> None:
    with closing(connect(prepared.url)) as connection:
        run_pass(connection, prepared.settings, prepared.doorbells)


def answer_stacker(prepared: Prepared) -> None:
    """The stacking actor as a worker runs it."""
    pipeline = Pipeline(prepared.broker, prepared.settings)
    pipeline.actors.answering._local.message_id = prepared.message_id
    pipeline.actors.stack()


def send(prepared: Prepared) -> None:
    sender = Sender(prepared.url, prepared.settings, prepared.doorbells)
    sender.answer(prepared.message_id)


def send_together(prepared: Prepared) -> None:
    """Two senders of one process, which share a turn."""
    sender = Sender(prepared.url, prepared.settings, prepared.doorbells)
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(sender.answer, each) for each in (prepared.message_id, None)]:
            done.result()


def overtaken(prepared: Prepared) -> None:
    """A sender whose stacks get new rows while it is at it, and that is stopped after one mail."""
    settings = prepared.settings
    session = Session(
        Relay.from_url(settings.smtp_url), timeouts=Timeouts(), local_hostname=settings.domain
    )
    with closing(connect(prepared.url)) as connection, closing(session):
        with transaction(connection) as cursor:
            claims = delivery.claim(cursor, limit=3, lease=LEASE)
            if not claims:
                # Others were faster while it was frozen.
                return
            first, *rest = claims
            delivery.begin(cursor, first, worker="walk", lease=LEASE)
        run_pass(connection, settings, prepared.doorbells)
        ahead = Ahead(connection)
        ahead.begin([first.subject])
        statements = Statements(connection)
        result = run(
            attempt(settings, session, ahead, first),
            lambda: mark(statements, settings, [first]).allow(first),
        )
        with transaction(connection) as cursor:
            assert not isinstance(result, Closing)
            write_outcome(cursor, settings, first, result, relay_pause=timedelta(seconds=1))
        for unbegun in rest:
            delivery.release(connection, unbegun)


def recover(prepared: Prepared) -> None:
    with closing(connect(prepared.url)) as connection:
        recovery = Recovery(connection, prepared.settings, prepared.doorbells)
        recovery.run()
        recovery.purge()


def tick(prepared: Prepared) -> None:
    schedule = Schedule(prepared.url, prepared.settings, prepared.doorbells)
    with closing(connect(prepared.url)) as connection:
        schedule.tick(connection)
        schedule.recover(connection)


def write(prepared: Prepared) -> None:
    """A producer: two rows, one of them urgent, in a transaction of its own."""
    with closing(psycopg2.connect(prepared.url)) as connection:
        with connection.cursor() as cursor:
            for receiver, urgent in (("p1", False), ("p2", True)):
                notify(
                    cursor,
                    receiver=receiver,
                    entity=("issue", "1"),
                    data={"verb": "updated", "field": f"written {receiver}", "new_value": "new"},
                    urgent=urgent,
                    broker=prepared.broker,
                )
        connection.commit()


def initialise(prepared: Prepared) -> None:
    with closing(connect(prepared.url)) as connection:
        init(connection)


BOTH = ("resend", "hold")
SEND, STACK = "pipeline.send", "pipeline.stack"

OPERATIONS = {
    "write": Operation(write, SCENES["people"]),
    "tick": Operation(tick, SCENES["rows"]),
    "stack": Operation(stack, SCENES["rows"]),
    "stacker": Operation(answer_stacker, SCENES["ticked"], doorbell=STACK),
    "send": Operation(send, SCENES["mixed"], BOTH, SEND, talks=True),
    "send together": Operation(
        send_together, SCENES["mixed"], doorbell=SEND, talks=True, is_orderly=False
    ),
    "probe": Operation(send, SCENES["trial"], doorbell=SEND, talks=True),
    "overtaken": Operation(overtaken, SCENES["overtaken"], BOTH, talks=True),
    "recover": Operation(recover, SCENES["stuck"], BOTH),
    "init": Operation(initialise, SCENES["nothing"]),
}
