"""A real tracker's rows, written by psql, come out as mails that their readers understand."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path

import pytest

from pipeline.embedded.binaries import find_binaries
from tests.support.digests import Page
from tests.support.installation import Installation
from tests.support.smtp_server import ScriptedServer

DATA = Path(__file__).resolve().parents[1] / "data"

ALICE, ERIN = "558cde7f-03d7-42b0-b858-4fd616253125", "a2ac85c9-b74d-4181-9869-3d16577c07b4"
BOB, CAROL = "8ab966f1-c704-4c4e-9db8-bcb4ca1a2e60", "82f45732-9790-4138-b4ca-3db95fedf626"
DAN = "a4a6bdd9-2eea-4e61-acca-a1e970bbb000"
ENGINE = "d1115b67-ad7d-4d67-b779-8b001e6492de"
CREATED = "841a5a8c-a6a8-4e3c-b0b6-3821ed7e0f90"

PEOPLE = f"""
    INSERT INTO pipeline.recipient (id, email, display_name, locale, time_zone) VALUES
        ('{ALICE}', 'alice@people.example', 'Alice Adams', 'en', 'UTC'),
        ('{ERIN}', 'erin@people.example', 'Erin Eager', 'en', 'Asia/Kolkata'),
        ('{BOB}', 'bob@people.example', 'Bob Brown', NULL, 'America/Los_Angeles'),
        ('{CAROL}', 'carol@people.example', 'Carol Clark', 'fr', 'Europe/Paris'),
        ('{DAN}', 'dan@people.example', NULL, NULL, NULL);
"""

PROJECT = "https://tracker.example.test/acme/projects/1f6ac2d5-c2e5-45c3-9c31-5ab8e650e187/issues/"

#: Every mail by its reader and item: the subject, who did it and when by the reader's clock, what
#: it comes to, and whose clock that is.
MAILS = {
    ("erin@people.example", ENGINE): (
        "ROC-1 Engine leaks oil badly: 9 updates",
        "Alice Adams, 1 Dec 2026, 07:26 IST",
        [
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
        "Asia/Kolkata",
    ),
    ("bob@people.example", ENGINE): (
        "ROC-1 Engine leaks oil: 3 updates",
        "Alice Adams, 30 Nov 2026, 17:56 PST",
        [
            "- Commented:",
            "    ping @Carol Clark please",
            "- Mentioned Carol Clark and someone in the description:",
            "    ping @Carol Clark please",
            "    ping @someone please",
            "- Priority: medium → high",
        ],
        "America/Los_Angeles",
    ),
    ("bob@people.example", CREATED): (
        "ROC-4 Created with assignee: Assigned to you",
        "Alice Adams, 30 Nov 2026, 17:56 PST",
        ["- Assigned to you"],
        "America/Los_Angeles",
    ),
    ("carol@people.example", ENGINE): (
        "ROC-1 Engine leaks oil: 2 updates",
        "Alice Adams, 1 Dec 2026, 02:56 CET",
        [
            "- Mentioned you in a comment:",
            "    ping @Carol Clark please",
            "- Priority: medium → high",
        ],
        "Europe/Paris",
    ),
    ("dan@people.example", ENGINE): (
        "ROC-1 Engine leaks oil: Priority medium → high",
        "Alice Adams, 1 Dec 2026, 01:56 UTC",
        ["- Priority: medium → high"],
        "UTC",
    ),
}


def psql(url: str, *arguments: str) -> str:
    """Run psql as a person would; any error ends it."""
    done = subprocess.run(
        [
            find_binaries().folder / "psql",
            *("--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", "--dbname", url),
            *arguments,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_rows(url: str, which: str = ".*") -> None:
    psql(
        url,
        *("--set", f"lines={DATA / 'sample_rows.jsonl'}", "--set", f"which={which}"),
        *("--file", str(DATA / "sample_rows.sql")),
    )


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


@pytest.fixture
def tracker(installation: Installation, server: ScriptedServer) -> Installation:
    """An installation that knows the tracker's people."""
    psql(installation.url, "--command", PEOPLE)
    installation.set(smtp_url=server.url, base_url="https://tracker.example.test")
    return installation


def received(server: ScriptedServer) -> dict[tuple[str, str], EmailMessage]:
    """What the server took, by reader and item; never two of the same."""
    mails = {}
    for accepted in server.accepted:
        mail = message_from_bytes(accepted.content, policy=policy.SMTP)
        assert isinstance(mail, EmailMessage)
        (recipient,) = accepted.recipients
        item = re.search(r"/issues/([0-9a-f-]{36})$", body(mail, "plain"), re.MULTILINE)
        assert item is not None
        assert (recipient, item[1]) not in mails
        mails[recipient, item[1]] = mail
    return mails


def body(mail: EmailMessage, kind: str) -> str:
    part = mail.get_body((kind,))
    assert part is not None
    content = part.get_content()
    assert isinstance(content, str)
    return content.replace("\r\n", "\n")


def test_each_reader_gets_one_mail_an_item_that_says_what_it_came_to(
    tracker: Installation, server: ScriptedServer
) -> None:
    """Names, order, net effect, subject and reference, times in the reader's zone; never None."""
    write_rows(tracker.url)
    assert tracker.stack().claimed_count == 35
    assert tracker.send() == {"sent": 5}

    mails = received(server)
    assert mails.keys() == MAILS.keys()
    for (recipient, item), (subject, heading, lines, zone) in MAILS.items():
        mail = mails[recipient, item]
        reference, _, rest = subject.partition(" ")
        assert str(mail["Subject"]) == subject
        assert mail["To"].addresses[0].addr_spec == recipient
        assert body(mail, "plain").splitlines() == [
            f"{reference} {rest.partition(':')[0]}",
            f"{PROJECT}{item}",
            "",
            heading,
            *lines,
            "",
            "--",
            f"Times are in {zone}. This message was sent automatically.",
        ]
        page = Page(body(mail, "html"))
        person, _, time = heading.partition(", ")
        for told in (person, time, reference, *(line.strip("- :") for line in lines)):
            assert told in page.text
        assert f"{PROJECT}{item}" in page.links
        assert "None" not in page.text + body(mail, "plain") + str(mail["Subject"])
        assert not [value for name, value in mail.items() if "None" in str(value)]


def test_every_row_is_in_a_delivery_that_was_sent(
    tracker: Installation, server: ScriptedServer
) -> None:
    """As the contract has it: claimed, in the delivery of its own stack, and sent with it."""
    write_rows(tracker.url)
    tracker.stack()
    tracker.send()
    assert tracker.query(
        "SELECT count(*), count(DISTINCT n.delivery_id) FROM pipeline.email_notification_log n"
        " JOIN pipeline.delivery d ON d.id = n.delivery_id AND d.state = 'sent'"
        " AND (d.receiver_id, d.entity_name, d.entity_identifier)"
        " = (n.receiver_id, n.entity_name, n.entity_identifier)"
        " WHERE n.processed_at IS NOT NULL AND n.sent_at = d.sent_at"
    ) == [(35, 5)]
    sent = {
        message_id for (message_id,) in tracker.query("SELECT message_id FROM pipeline.delivery")
    }
    assert {accepted.message_id for accepted in server.accepted} == sent
    assert server.duplicate_ids() == {}


def test_rows_that_come_in_two_parts_are_one_mail_all_the_same(
    tracker: Installation, server: ScriptedServer
) -> None:
    """Stacked twice before anybody could send: the mails are those of one stack."""
    half = "name|priority|state|target_date.*|labels.*|comment.*"
    write_rows(tracker.url, half)
    first = tracker.stack()
    write_rows(tracker.url, f"(?!({half})$).*")
    second = tracker.stack()
    assert first.claimed_count + second.claimed_count == 35
    assert (first.created_count, second.created_count, second.joined_count) == (1, 4, 1)
    assert tracker.send() == {"sent": 5}
    told = {key: (mail["Subject"], body(mail, "plain")) for key, mail in received(server).items()}
    assert told.keys() == MAILS.keys()
    for key, (subject, _, lines, _) in MAILS.items():
        assert told[key][0] == subject
        assert "\n".join(lines) in told[key][1]


def test_B01_what_was_undone_makes_no_mail(tracker: Installation, server: ScriptedServer) -> None:
    """Dates, labels, people and links that came and went again leave nothing to say."""
    write_rows(tracker.url, "target_date .*|labels .*|assignees .*|link .*|attachment .*")
    assert tracker.stack().claimed_count == 10
    assert tracker.send() == {"skipped": 1}
    delivery = tracker.delivery()
    assert (delivery["state"], delivery["receiver_id"]) == ("skipped", ERIN)
    assert delivery["reason"] == "nothing left to say: what happened was undone, or is gone"
    assert server.accepted_count == 0


def test_who_can_not_be_told_is_suppressed_and_the_others_are_told(
    tracker: Installation, server: ScriptedServer
) -> None:
    """One reader has left, one has no address, one was deactivated since."""
    write_rows(tracker.url)
    tracker.stack()
    psql(
        tracker.url,
        "--command",
        f"DELETE FROM pipeline.recipient WHERE id = '{DAN}';"
        f"UPDATE pipeline.recipient SET email = NULL WHERE id = '{CAROL}';"
        f"UPDATE pipeline.recipient SET active = false WHERE id = '{BOB}'",
    )
    assert tracker.send() == {"suppressed": 4, "sent": 1}
    assert set(
        tracker.query(
            "SELECT receiver_id, reason FROM pipeline.delivery WHERE state = 'suppressed'"
        )
    ) == {
        (DAN, f"no such recipient: {DAN}"),
        (CAROL, f"recipient {CAROL} has no address"),
        (BOB, f"recipient {BOB} is not active"),
    }
    assert received(server).keys() == {("erin@people.example", ENGINE)}
    assert "ping @Carol Clark please" in body(
        received(server)["erin@people.example", ENGINE], "plain"
    )
