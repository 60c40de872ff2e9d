"""From an attempt's result to what becomes of its delivery."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from pipeline.replies import Outcome, Reply, Scope, Stage
from pipeline.settings import Settings
from pipeline.settlement import Settlement, retry_delay, settlement_for
from pipeline.smtp import Result

SETTINGS = Settings(max_attempts=3)


def settled(
    outcome: Outcome, scope: Scope = Scope.MESSAGE, *, attempt_count: int = 1
) -> Settlement:
    result = Result(outcome, scope, Stage.RCPT, Reply(451, "4.7.1", "Later"))
    return settlement_for(
        result,
        attempt_count=attempt_count,
        settings=SETTINGS,
        relay_pause=timedelta(seconds=7),
    )


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (Outcome.SENT, "sent"),
        (Outcome.FAILED, "failed"),
        (Outcome.DEFERRED, "deferred"),
        (Outcome.UNCERTAIN, "uncertain"),
        (Outcome.ABANDONED, "queued"),
    ],
)
def test_each_outcome_has_its_state(outcome: Outcome, state: str) -> None:
    """And a reason for people."""
    settlement = settled(outcome)
    assert settlement.state == state
    assert settlement.reason


def test_relay_trouble_gives_the_attempt_back() -> None:
    """P6: it waits for the relay, and is not counted."""
    settlement = settled(Outcome.DEFERRED, Scope.RELAY, attempt_count=3)
    assert (settlement.state, settlement.refund) == ("deferred", 1)
    assert settlement.delay == timedelta(seconds=7)


@pytest.mark.parametrize(("stage", "refund"), [(Stage.PREPARE, 1), (Stage.DATA, 0)])
def test_only_what_its_sender_could_not_go_on_with_gives_the_attempt_back(
    stage: Stage, refund: int
) -> None:
    """A lease that is lost each time would else be tried for ever."""
    result = Result(Outcome.ABANDONED, Scope.MESSAGE, stage, error="stopped")
    settlement = settlement_for(
        result, attempt_count=1, settings=SETTINGS, relay_pause=timedelta(seconds=7)
    )
    assert (settlement.state, settlement.refund) == ("queued", refund)


def test_the_last_attempt_fails() -> None:
    """The reply that ended it stays readable."""
    settlement = settled(Outcome.DEFERRED, attempt_count=3)
    assert settlement.state == "failed"
    assert settlement.reason == "3 attempts used up, the last one: 451 4.7.1 Later"


def test_waits_triple_from_the_base_to_the_cap() -> None:
    """Within the jitter, and never beyond what a number can hold."""
    nominal = [10, 30, 90, 270, 810, 2430, 7290, 21600, 21600]
    for attempt_count, seconds in enumerate(nominal, 1):
        delay = retry_delay(attempt_count, SETTINGS, chance=random.Random(1))
        assert 0.8 * seconds <= delay.total_seconds() <= 1.2 * seconds
    assert retry_delay(10**6, SETTINGS) <= timedelta(seconds=21600 * 1.2)


def test_waits_differ() -> None:
    """A burst that failed together is not tried again together."""
    assert len({retry_delay(3, SETTINGS) for _ in range(20)}) > 10
