"""The delivery protocol over the real SQL: senders, recovery and an operator in any order.

Each rule is one transaction of one of them. Whoever is not moved is frozen where it is; the server
is a list. In the end ordinary workers finish, and the ledger has to be right.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from pipeline import delivery
from pipeline.database import transaction
from pipeline.delivery import Claimed
from pipeline.replies import Outcome, Reply, Scope, Stage
from pipeline.settling import write_outcome
from pipeline.smtp import Result
from tests.faults.walk import aftermath, ledger
from tests.faults.walk.operations import settings_for
from tests.faults.walk.walker import TABLES
from tests.support.installation import Installation
from tests.support.smtp_server import Accepted, ScriptedServer

#: One stack and two senders: they meet more often.
PEOPLE = ("p1",)
SENDERS = st.integers(0, 1)
LEASE = timedelta(seconds=30)

SENT = Result(Outcome.SENT, Scope.MESSAGE, Stage.REPLY, Reply(250, "2.0.0", "Ok"))
REFUSED = Result(Outcome.FAILED, Scope.MESSAGE, Stage.REPLY, Reply(554, "5.6.0", "No"))
LATER = Result(Outcome.DEFERRED, Scope.MESSAGE, Stage.RCPT, Reply(451, "4.7.1", "Later"))
UNKNOWN = Result(Outcome.UNCERTAIN, Scope.MESSAGE, Stage.REPLY, error="the reply was lost")
ABANDONED = Result(Outcome.ABANDONED, Scope.MESSAGE, Stage.DATA, error="not in time")


@dataclass(eq=False)
class Hand:
    """What a sender has in hand, and how far it is."""

    claimed: Claimed | None = None
    at: str = "idle"
    content: list[str] = field(default_factory=list)
    result: Result | None = None


def somebody(at: str) -> Callable[[Any], Any]:
    """Only when a sender is as far as that."""
    return precondition(lambda self: any(hand.at == at for hand in self.hands))


class Machine(RuleBasedStateMachine):
    """One installation's delivery protocol."""

    installation: ClassVar[Installation]
    server: ClassVar[ScriptedServer]
    policy: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        tables = ", ".join(f"pipeline.{table}" for table in TABLES.split())
        self.installation.query(f"TRUNCATE {tables}, dramatiq.queue")
        for name in PEOPLE:
            self.installation.add_person(name)
        self.hands = [Hand() for _ in range(2)]
        self.seen = len(self.server.accepted)
        self.accepted: list[Accepted] = []
        self.row_count = 0
        for name in PEOPLE:
            self.write(name)

    def one(self, at: str, number: int) -> Hand:
        """One of the senders that are as far as that."""
        hands = [hand for hand in self.hands if hand.at == at]
        return hands[number % len(hands)]

    def let_go(self, hand: Hand) -> None:
        self.hands[self.hands.index(hand)] = Hand()

    @rule(receiver=st.sampled_from(PEOPLE))
    def write(self, receiver: str) -> None:
        self.row_count += 1
        self.installation.notify(receiver, "1", field=f"field {self.row_count} of it")
        self.installation.stack()

    @somebody("idle")
    @rule(number=SENDERS, begins=st.sampled_from([True, True, True, False]))
    def claim(self, number: int, begins: bool) -> None:
        hand = self.one("idle", number)
        with transaction(self.installation.connection) as cursor:
            claims = delivery.claim(cursor, limit=1, lease=LEASE)
        if claims:
            hand.claimed, hand.at = claims[0], "claimed"
            if begins:
                self._begin(hand)

    @somebody("claimed")
    @rule(number=SENDERS)
    def begin(self, number: int) -> None:
        self._begin(self.one("claimed", number))

    def _begin(self, hand: Hand) -> None:
        assert hand.claimed is not None
        with transaction(self.installation.connection) as cursor:
            begun = delivery.begin(cursor, hand.claimed, worker="machine", lease=LEASE)
        if not begun:
            self.let_go(hand)
            return
        rows = self.installation.query(
            "SELECT data ->> 'field' FROM pipeline.email_notification_log WHERE delivery_id = %s",
            (hand.claimed.id,),
        )
        hand.at, hand.content = "begun", [text for (text,) in rows]

    @somebody("claimed")
    @rule(number=SENDERS)
    def put_back(self, number: int) -> None:
        hand = self.one("claimed", number)
        assert hand.claimed is not None
        delivery.release(self.installation.connection, hand.claimed)
        self.let_go(hand)

    @somebody("begun")
    @rule(number=SENDERS)
    def mark(self, number: int) -> None:
        hand = self.one("begun", number)
        assert hand.claimed is not None
        with transaction(self.installation.connection) as cursor:
            marked = delivery.mark_transmitting(cursor, hand.claimed, lease=LEASE)
        hand.at, hand.result = ("marked", None) if marked else ("over", ABANDONED)

    @somebody("marked")
    @rule(number=SENDERS, how=st.sampled_from(["taken", "refused", "lost", "taken and lost"]))
    def send_the_dot(self, number: int, how: str) -> None:
        hand = self.one("marked", number)
        assert hand.claimed is not None
        if how.startswith("taken"):
            self.accepted.append(
                Accepted(
                    at=time.time(),
                    connection=0,
                    sender="",
                    recipients=[f"{hand.claimed.receiver_id}@people.example"],
                    message_id=hand.claimed.message_id,
                    subject="",
                    content="\n".join(hand.content).encode(),
                )
            )
        results = {"taken": SENT, "refused": REFUSED}
        hand.at, hand.result = "over", results.get(how, UNKNOWN)

    @somebody("begun")
    @rule(number=SENDERS, result=st.sampled_from([LATER, REFUSED]))
    def be_refused(self, number: int, result: Result) -> None:
        hand = self.one("begun", number)
        hand.at, hand.result = "over", result

    @somebody("over")
    @rule(number=SENDERS, twice=st.booleans())
    def settle(self, number: int, twice: bool) -> None:
        hand = self.one("over", number)
        assert hand.claimed is not None
        assert hand.result is not None
        for _ in range(1 + twice):
            with transaction(self.installation.connection) as cursor:
                write_outcome(
                    cursor,
                    self.installation.settings,
                    hand.claimed,
                    hand.result,
                    relay_pause=timedelta(seconds=1),
                )
        self.let_go(hand)

    @somebody("begun")
    @rule(number=SENDERS)
    def find_nobody(self, number: int) -> None:
        hand = self.one("begun", number)
        assert hand.claimed is not None
        with transaction(self.installation.connection) as cursor:
            cursor.execute(*delivery.closing(hand.claimed, state="skipped", reason="empty"))
        self.let_go(hand)

    @rule(number=SENDERS)
    def extend(self, number: int) -> None:
        hand = self.hands[number]
        if hand.claimed is not None:
            self.installation.query(
                "UPDATE pipeline.delivery SET lease_expires_at = now() + interval '30 s' "
                "WHERE id = %s AND attempt_token = %s AND state IN ('sending', 'transmitting')",
                (hand.claimed.id, hand.claimed.token),
            )

    @somebody("marked")
    @rule(number=SENDERS)
    def crash(self, number: int) -> None:
        """At the worst moment; at any other it is as good as frozen."""
        self.let_go(self.one("marked", number))

    @rule(decides=st.booleans())
    def fall_silent(self, decides: bool) -> None:
        """Leases run out, and recovery does what follows."""
        aftermath.pass_time(self.installation)
        self.installation.recovery.give_up_silent()
        self.installation.recovery.declare_uncertain()
        if decides:
            self.installation.recovery.decide_uncertain()
        # What waits a while before it is tried again is due.
        aftermath.pass_time(self.installation, timedelta(days=1))
        self.installation.recovery.requeue_deferred()

    @rule()
    def decide(self) -> None:
        self.installation.recovery.decide_uncertain()

    @precondition(lambda self: self.policy == "resend")
    @rule()
    def lose_the_messages(self) -> None:
        self.installation.query("DELETE FROM dramatiq.queue")

    def teardown(self) -> None:
        while any(hand.at == "over" for hand in self.hands):
            self.settle(0, False)
        aftermath.finish(self.installation)
        accepted = [*self.accepted, *self.server.accepted[self.seen :]]
        assert ledger.check(self.installation, accepted) == []


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["resend", "hold"])
def test_any_order_of_steps_keeps_the_ledger_right(database_url: str, policy: str) -> None:
    """Senders that crash, freeze and come back, recovery and lost messages, in any order."""
    with ScriptedServer() as server:
        installation = Installation(database_url)
        installation.settings = settings_for(database_url, server.url, policy)
        installation.set(stack_limit=500)

        attributes: dict[str, Any] = {
            "installation": installation,
            "server": server,
            "policy": policy,
        }
        machine = type("PolicyMachine", (Machine,), attributes)
        try:
            run_state_machine_as_test(
                machine,
                settings=settings(
                    max_examples=70,
                    stateful_step_count=40,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                    database=None,
                    # Shrinking takes minutes here; the steps of the example are told as they are.
                    phases=[Phase.generate],
                ),
            )
        finally:
            installation.close()
