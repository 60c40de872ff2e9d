"""The demo's verdict: what counts as lost, and what as coming twice."""

from __future__ import annotations

from contextlib import closing

import pytest

from pipeline.database import connect
from pipeline.demonstration.outcome import Outcome, read_outcome
from pipeline.inbox import Inbox
from tests.support.postgres import execute


@pytest.fixture
def inbox() -> Inbox:
    """An inbox that nobody needs to send to: mails are put into its mailbox."""
    return Inbox()


def deliver(url: str, state: str, item: str, count: int = 1) -> list[str]:
    """A delivery in this state with so many notifications; returns their ids."""
    delivery_id = execute(
        url,
        "INSERT INTO pipeline.delivery (receiver_id, entity_name, entity_identifier, state,"
        " message_id, notification_count) VALUES ('1', 'issue', %s, %s, %s, %s) RETURNING id",
        (item, state, f"<{item}@example.com>", count),
    )[0][0]
    return [
        execute(
            url,
            "INSERT INTO pipeline.email_notification_log (receiver_id, entity_name,"
            " entity_identifier, data, processed_at, delivery_id)"
            " VALUES ('1', 'issue', %s, '{}', now(), %s) RETURNING id::text",
            (item, delivery_id),
        )[0][0]
        for _ in range(count)
    ]


def receive(inbox: Inbox, item: str) -> None:
    content = f"Message-ID: <{item}@example.com>\r\n\r\nHello\r\n".encode()
    inbox.mailbox.add("a@example.com", ["b@example.com"], content)


def outcome(url: str, inbox: Inbox, ids: list[str]) -> Outcome:
    with closing(connect(url)) as connection:
        return read_outcome(connection, inbox, ids, seconds=1.0, in_time=True)


def test_all_is_well(database_url: str, inbox: Inbox) -> None:
    """Sent and received once, or known to need no mail: nothing is lost and nothing doubled."""
    ids = deliver(database_url, "sent", "a", 3) + deliver(database_url, "skipped", "b")
    receive(inbox, "a")

    told = outcome(database_url, inbox, ids)

    assert told.is_good
    assert (told.notifications, told.claimed, told.mails_received) == (4, 4, 1)
    assert told.deliveries == {"sent": 1, "skipped": 1}


@pytest.mark.parametrize("state", ["queued", "sending", "deferred", "held", "failed", "cancelled"])
def test_what_is_not_delivered_is_lost(database_url: str, inbox: Inbox, state: str) -> None:
    """Whatever is not final, or ended without a mail that was due, counts as lost."""
    ids = deliver(database_url, state, "a", 2)

    told = outcome(database_url, inbox, ids)

    assert (told.lost, told.doubled, told.is_good) == (2, 0, False)


def test_what_was_sent_and_never_came_is_lost(database_url: str, inbox: Inbox) -> None:
    """The database's word that it was sent is not enough."""
    ids = deliver(database_url, "sent", "a", 2)

    assert outcome(database_url, inbox, ids).lost == 2


def test_what_nobody_claimed_is_lost(database_url: str, inbox: Inbox) -> None:
    """A notification without a delivery counts, and so does one whose row is gone."""
    (unclaimed,) = execute(
        database_url,
        "INSERT INTO pipeline.email_notification_log (receiver_id, entity_name, entity_identifier,"
        " data) VALUES ('1', 'issue', 'a', '{}') RETURNING id::text",
    )[0]

    told = outcome(database_url, inbox, [unclaimed, "00000000-0000-4000-8000-000000000000"])

    assert (told.lost, told.claimed) == (2, 0)


def test_a_mail_that_came_twice_is_doubled(database_url: str, inbox: Inbox) -> None:
    """The same Message-ID three times is two mails too many."""
    ids = deliver(database_url, "sent", "a")
    for _ in range(3):
        receive(inbox, "a")

    told = outcome(database_url, inbox, ids)

    assert (told.doubled, told.duplicate_message_ids, told.is_good) == (2, 1, False)


def test_a_mail_that_nobody_sent_is_too_many(database_url: str, inbox: Inbox) -> None:
    """A mail that belongs to no sent delivery counts."""
    receive(inbox, "b")

    assert outcome(database_url, inbox, []).doubled == 1
