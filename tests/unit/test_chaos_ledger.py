"""The ledger of a chaos run: every broken promise is seen, and told."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from pipeline.chaos.ledger import Delivery, Ledger, Row, Verdict, judge
from pipeline.chaos.plan import Mood
from pipeline.chaos.relay import Taken

#: When the mail was taken.
AT = datetime(2026, 3, 14, 9, 26, tzinfo=UTC)

DELIVERY = Delivery("d1", "<1@chaos>", "sent", "250 OK", "p1", "7", 2, AT, ["deferred", "sent"])
FAILED = Delivery("d2", "<2@chaos>", "failed", "550 Unknown", "p2", "7", 1, None, ["failed"])
ROWS = [
    Row("n0x1x0", "p1", "7", "d1", is_processed=True, sent_at=AT),
    Row("n0x1x1", "p1", "7", "d1", is_processed=True, sent_at=AT),
    Row("n0x1x2", "p2", "7", "d2", is_processed=True, sent_at=None),
]
MAIL = Taken(1.0, "<1@chaos>", "p1@chaos.example", frozenset({"n0x1x0", "n0x1x1"}), Mood.WELL)
GOOD = Ledger(
    written={row.token for row in ROWS},
    rows=ROWS,
    deliveries=[DELIVERY, FAILED],
    taken=[MAIL],
    refused={"p2@chaos.example"},
)
UNCERTAIN = replace(DELIVERY, outcomes=["uncertain", "sent"])


def judged(policy: str = "resend", **changes: object) -> Verdict:
    return judge(replace(GOOD, **changes), on_uncertain=policy)  # type: ignore[arg-type]


def told(verdict: Verdict) -> str:
    return "\n".join(verdict.findings)


def test_a_ledger_without_fault_is_found_good() -> None:
    """Sent and failed for a reason, each row in one mail or with its reason."""
    verdict = judged()

    assert verdict.holds
    assert (verdict.lost, verdict.dispatched_twice, verdict.copies, verdict.unexplained) == (0,) * 4
    assert verdict.states == {"sent": 1, "failed": 1}


def test_a_row_that_is_gone_is_lost() -> None:
    """The application saw it committed."""
    assert "n9x9x9 was committed" in told(judged(written=[*GOOD.written, "n9x9x9"]))


def test_a_row_that_nobody_claimed_is_lost() -> None:
    """It waits for ever."""
    row = Row("n0x1x3", "p1", "7", None, is_processed=False, sent_at=None)
    verdict = judged(rows=[*ROWS, row])
    assert verdict.lost == 1
    assert "n0x1x3 is in no delivery" in told(verdict)


@pytest.mark.parametrize("state", ["queued", "transmitting", "deferred", "skipped", "cancelled"])
def test_a_row_whose_delivery_does_not_end_well_is_lost(state: str) -> None:
    """Neither waiting for ever nor an end that nobody asked for is good enough."""
    verdict = judged(deliveries=[DELIVERY, replace(FAILED, state=state)])
    assert verdict.lost == 1
    assert "n0x1x2" in told(verdict)


def test_a_row_that_is_marked_as_sent_and_told_by_no_mail_is_lost() -> None:
    """What the server took is read, not what the database says."""
    verdict = judged(taken=[replace(MAIL, tokens=frozenset({"n0x1x0"}))])
    assert verdict.lost == 1
    assert "no mail that was taken tells of it" in told(verdict)


def test_a_delivery_that_is_marked_as_sent_and_was_never_taken_is_found() -> None:
    """Its mail is lost."""
    assert "marked as sent, and never taken" in told(judged(taken=[]))


def test_a_row_in_two_mails_is_dispatched_twice() -> None:
    """Two deliveries tell of it."""
    other = Taken(2.0, "<2@chaos>", "p2@chaos.example", frozenset({"n0x1x1"}), Mood.WELL)
    verdict = judged(taken=[MAIL, other])
    assert verdict.dispatched_twice == 1
    assert "n0x1x1 is told by ['<1@chaos>', '<2@chaos>']" in told(verdict)


def test_a_copy_needs_an_uncertain_attempt() -> None:
    """With one it is explained; without, or one too many, it is not."""
    explained = judged(deliveries=[UNCERTAIN, FAILED], taken=[MAIL, MAIL])
    bare = judged(taken=[MAIL, MAIL])
    too_many = judged(deliveries=[UNCERTAIN, FAILED], taken=[MAIL] * 3)

    assert (explained.copies, explained.unexplained, explained.holds) == (1, 0, True)
    assert (bare.copies, bare.unexplained) == (1, 1)
    assert (too_many.copies, too_many.unexplained) == (2, 1)
    assert "a copy that nothing explains" in told(bare)


def test_a_copy_is_a_fault_where_the_policy_is_to_hold() -> None:
    """Then nobody may get a mail twice."""
    verdict = judged("hold", deliveries=[UNCERTAIN, FAILED], taken=[MAIL, MAIL])
    assert "although the policy is to hold" in told(verdict)


def test_a_mail_that_was_taken_and_that_nobody_knows_of_is_found() -> None:
    """A failed delivery's mail was accepted, with no uncertain attempt."""
    stray = Taken(2.0, "<2@chaos>", "p2@chaos.example", frozenset({"n0x1x2"}), Mood.WELL)
    assert "taken, and nobody knows" in told(judged(taken=[MAIL, stray]))
    assert "a mail of no delivery: <3@chaos>" in told(
        judged(taken=[MAIL, replace(stray, message_id="<3@chaos>")])
    )


def test_a_mail_to_somebody_else_is_found() -> None:
    """Its recipient is not the delivery's."""
    assert "went to p9@chaos.example" in told(
        judged(taken=[replace(MAIL, recipient="p9@chaos.example")])
    )


def test_a_mail_that_tells_of_anothers_row_is_found() -> None:
    """Also when nobody else tells of it."""
    verdict = judged(taken=[replace(MAIL, tokens=MAIL.tokens | {"n0x1x2"})])
    assert "tells of n0x1x2, which is not its own" in told(verdict)


@pytest.mark.parametrize(
    ("delivery", "words"),
    [
        (replace(DELIVERY, reason=""), "nothing says why"),
        (replace(DELIVERY, outcomes=["open", "sent"]), "an attempt of it has no outcome"),
        (replace(DELIVERY, outcomes=["sent", "sent"]), "sent more than once"),
        (replace(DELIVERY, receiver_id="p3"), "is in the delivery of another stack"),
        (replace(DELIVERY, sent_at=None), "is marked otherwise than its delivery"),
        (replace(DELIVERY, sent_at=AT + timedelta(1)), "is marked otherwise than its delivery"),
        (replace(DELIVERY, state="failed"), "is failed, and was sent at"),
        (replace(DELIVERY, state="failed"), "the server never refused it"),
    ],
)
def test_an_odd_end_is_found(delivery: Delivery, words: str) -> None:
    """Whatever else the ledger shows to be wrong is told."""
    assert words in told(judged(deliveries=[delivery, FAILED]))
