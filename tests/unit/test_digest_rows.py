"""Rows as they really come: both forms, odd values, and anything that JSON can hold."""

import pytest

from pipeline.digest import Entity, make_digest, people_named
from pipeline.rendering import Recipient
from tests.support.digests import (
    Page,
    digest_of,
    headings,
    lines,
    mail_of,
    notification,
    row,
    sample_stacks,
    told,
)

ALICE, ERIN = "558cde7f-03d7-42b0-b858-4fd616253125", "a2ac85c9-b74d-4181-9869-3d16577c07b4"
BOB, CAROL = "8ab966f1-c704-4c4e-9db8-bcb4ca1a2e60", "82f45732-9790-4138-b4ca-3db95fedf626"
NAMES = {ALICE: "Alice Adams", BOB: "Bob Brown", CAROL: "Carol Clark", ERIN: "Erin Eager"}
ENGINE = "d1115b67-ad7d-4d67-b779-8b001e6492de"
CREATED = "841a5a8c-a6a8-4e3c-b0b6-3821ed7e0f90"

EXPECTED = {
    (ERIN, ENGINE): [
        "- Name: Engine leaks oil → Engine leaks oil badly",
        "- State: Backlog → Done",
        "- Start date set to 2026-06-01",
        "- Parent set to ROC-2",
        "- Estimate set to 5",
        "- Commented:",
        "    ping @Carol Clark please",
        "- Now blocked by ROC-2",
        "- Priority set to high",
        "- Deleted this issue",
    ],
    (BOB, ENGINE): [
        "- Commented:",
        "    ping @Carol Clark please",
        "- Mentioned Carol Clark and someone in the description:",
        "    ping @Carol Clark please",
        "    ping @someone please",
        "- Priority: medium → high",
    ],
    (CAROL, ENGINE): [
        "- Mentioned you in a comment:",
        "    ping @Carol Clark please",
        "- Priority: medium → high",
    ],
    ("a4a6bdd9-2eea-4e61-acca-a1e970bbb000", ENGINE): ["- Priority: medium → high"],
    (BOB, CREATED): ["- Assigned to you"],
}


@pytest.mark.parametrize("stack", EXPECTED, ids=["erin", "bob", "carol", "other", "bob created"])
def test_a_real_tracker_s_rows(stack: tuple[str, str]) -> None:
    """Names, order, net effect, the reader's zone, and no None."""
    receiver, identifier = stack
    rows = sample_stacks()[stack]
    digest = make_digest(
        rows,
        entity=Entity("issue", identifier, None, None, None),
        people={person: NAMES[person] for person in people_named(rows) & NAMES.keys()},
        base_url="https://tracker.example.test",
    )
    mail = mail_of(digest, Recipient(receiver, "r@example.com", None, None, "Asia/Kolkata"))
    assert lines(mail) == EXPECTED[stack]
    assert "Alice Adams, 1 Dec 2026, 07:26 IST" in mail.text
    assert digest.entity.url is not None
    assert digest.entity.url.endswith(f"/acme/projects/{_PROJECT}/issues/{identifier}")
    assert "None" not in mail.text + Page(mail.html).text + mail.subject


_PROJECT = "1f6ac2d5-c2e5-45c3-9c31-5ab8e650e187"


def test_every_stack_of_the_sample_is_looked_at() -> None:
    """No receiver of the sample is left out above."""
    assert sample_stacks().keys() == EXPECTED.keys()


def test_the_plain_form() -> None:
    """The same in fewer words."""
    data = {
        "verb": "updated",
        "field": "state",
        "old_value": "Todo",
        "new_value": "Done",
        "comment": None,
        "at": "2026-12-01T09:56:00Z",
    }
    mail = mail_of(digest_of(notification(data)))
    assert lines(mail) == ["- State: Todo → Done"]
    assert headings(mail) == ["Alice Adams, 1 Dec 2026, 10:56 CET"]


@pytest.mark.parametrize(
    "time",
    ["2026-12-01T08:56:58.404182Z", "2026-12-01T08:56:58Z", "2026-12-01 08:56:58.278389+00:00"],
)
def test_the_three_time_formats(time: str) -> None:
    """A `T` or a blank, with or without a fraction."""
    mail = mail_of(digest_of(row("state", "A", "B", minute=500, activity_time=time)))
    assert headings(mail) == ["Alice Adams, 1 Dec 2026, 09:56 CET"]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (None, "Made a change without further details"),
        ("None", "Made a change without further details"),
        ({}, "Made a change without further details"),
        ({"issue": {"name": "x"}}, "Made a change without further details"),
        ({"issue_activity": None}, "Made a change without further details"),
        ({"issue_activity": {"verb": None}}, "Made a change without further details"),
        ("server restarted", "Update: server restarted"),
        (True, "Update: yes"),
        (0, "Update: 0"),
        ([1, None, "a"], "Update: 1, –, a"),
        ({"foo": {"bar": [None, "None"]}}, "Update: foo: bar: –, –"),
        ({"issue_activity": ["x"]}, "Update: x"),
        ({"issue": 5, "issue_activity": {"sum": 1.5}}, "Update: sum: 1.5"),
        ({"deep": {"a": {"b": {"c": {}}}}}, "Update: deep: a: b: …"),
    ],
)
def test_D13_what_is_not_understood_is_shown_plainly(data: object, expected: str) -> None:
    """No row stops a mail."""
    assert told(notification(data)) == [f"- {expected}"]


def test_D13_one_odd_row_spares_the_others() -> None:
    """The rest of the stack is told as ever."""
    rows = [notification({"issue": [], "issue_activity": 7}), row("state", "A", "B", minute=1)]
    assert told(*rows) == ["- Update: 7", "- State: A → B"]


def test_an_oversized_row_says_so() -> None:
    """Its data was not even read."""
    assert told(notification(None, oversized=True)) == [
        "- Made a change that is too large to show here"
    ]


def test_numbers_of_any_size() -> None:
    """Python refuses to print integers of thousands of digits."""
    assert told(row("size", 1, 10**5000)) == ["- Size: 1 → a number"]
