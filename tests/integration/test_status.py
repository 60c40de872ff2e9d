"""`pipeline status`, in text and as JSON."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.commands import run
from tests.support.postgres import execute

STATES = [
    *("queued", "sending", "transmitting", "deferred", "uncertain", "held"),
    *("sent", "failed", "suppressed", "skipped", "cancelled"),
]


def status(url: str, **settings: object) -> Any:
    return run("status", "--json", database_url=url, **settings).json


def add_delivery(url: str, state: str, receiver: str = "1") -> None:
    execute(
        url,
        "INSERT INTO pipeline.delivery"
        " (receiver_id, entity_name, entity_identifier, state, message_id, next_attempt_at)"
        " VALUES (%s, 'issue', 'a', %s, '<x@example.com>', now() - interval '90 seconds')",
        (receiver, state),
    )


def test_status_of_an_idle_installation(database_url: str) -> None:
    """Nothing waits, every state is there with 0, nobody has been seen."""
    now = status(database_url)

    assert now["notifications"] == {
        "pending": 0,
        "urgent": 0,
        "oldest_at": None,
        "oldest_age_seconds": None,
    }
    assert now["deliveries"] == dict.fromkeys(STATES, 0)
    assert now["queue"] == {"queued": 0, "consumed": 0, "rejected": 0}
    assert (now["doorbells"], now["senders"], now["schedulers"], now["workers"]) == ({}, [], [], [])


def test_status_counts_pending_rows_and_their_oldest_age(database_url: str) -> None:
    """Rows that nobody has claimed, the urgent ones among them, and for how long they wait."""
    execute(
        database_url,
        "INSERT INTO pipeline.email_notification_log"
        " (receiver_id, entity_name, entity_identifier, data, urgent, created_at)"
        " VALUES ('1', 'issue', 'a', '{}', false, now() - interval '2 minutes'),"
        " ('1', 'issue', 'b', '{}', true, now())",
    )

    waiting = status(database_url)["notifications"]
    shown = run("status", database_url=database_url).out

    assert (waiting["pending"], waiting["urgent"]) == (2, 1)
    assert 120 <= waiting["oldest_age_seconds"] < 180
    assert "2 waiting, 1 urgent, the oldest for 2 min" in shown


@pytest.mark.parametrize("state", STATES)
def test_status_counts_deliveries_by_state(database_url: str, state: str) -> None:
    """Each state is counted under its name."""
    add_delivery(database_url, state)

    now = status(database_url)

    assert now["deliveries"] == dict.fromkeys(STATES, 0) | {state: 1}
    assert f"1 {state}" in run("status", database_url=database_url).out
    assert (now["due_age_seconds"] is not None) == (state == "queued")


def test_status_tells_how_deep_the_queue_is(database_url: str) -> None:
    """Only our own messages count, by their state; doorbells are told beside them."""
    add_delivery(database_url, "queued")
    execute(
        database_url,
        "INSERT INTO dramatiq.queue (message_id, queue_name, state, message)"
        " VALUES (gen_random_uuid(), 'shop', 'queued', '{}'),"
        " (gen_random_uuid(), 'pipeline', 'rejected', '{}'),"
        " (gen_random_uuid(), 'pipeline', 'done', '{}')",
    )
    execute(
        database_url,
        "INSERT INTO pipeline.email_notification_log"
        " (receiver_id, entity_name, entity_identifier, data) VALUES ('1', 'issue', 'b', '{}')",
    )
    run("stack", database_url=database_url)

    now = status(database_url)

    assert now["queue"] == {"queued": 1, "consumed": 0, "rejected": 1}
    assert now["queue_table"] == "dramatiq.queue"
    assert now["doorbells"] == {"pipeline.send": {"waiting": 1, "answering": 0}}


def test_status_tells_about_the_relay(database_url: str) -> None:
    """A relay in trouble is shown with how often, its last answer, and when it is tried again."""
    execute(
        database_url,
        "INSERT INTO pipeline.relay (name, failure_count, retry_at, reason, smtp_code) VALUES"
        " ('mx.example.com:25', 5, now() + interval '60 seconds', '454 4.7.0 Too many', 454),"
        " ('old.example.com:25', 0, '-infinity', NULL, NULL)",
    )
    settings = {"smtp_url": "smtp://mx.example.com:25"}

    relays = status(database_url, **settings)["relays"]
    shown = run("status", database_url=database_url, **settings).out

    assert [relay["name"] for relay in relays] == ["mx.example.com:25", "old.example.com:25"]
    assert relays[0]["is_configured"]
    assert relays[0]["is_in_trouble"]
    assert (relays[0]["failure_count"], relays[0]["smtp_code"]) == (5, 454)
    assert relays[0]["reason"] == "454 4.7.0 Too many"
    assert not relays[1]["is_in_trouble"]
    assert "in trouble, 5 times in a row, tried again in " in shown
    assert "454 4.7.0 Too many" in shown


def test_status_shows_no_control_characters(database_url: str) -> None:
    """What others wrote can't do anything to the terminal of whoever looks."""
    execute(
        database_url,
        "INSERT INTO pipeline.relay (name, failure_count, reason)"
        " VALUES ('127.0.0.1:1025', 1, E'550 \\x1b[31mred\\x07 \\u202egreen')",
    )

    shown = run("status", database_url=database_url).out

    assert not {"\x1b", "\x07", "\u202e"} & set(shown)


def test_status_tells_who_is_there(database_url: str) -> None:
    """Schedulers and workers that were seen lately, and senders at work, with their host."""
    execute(
        database_url,
        "INSERT INTO pipeline.process (kind, name, seen_at) VALUES"
        " ('worker', 'a:1', now()), ('scheduler', 'a:2', now()),"
        " ('worker', 'gone:3', now() - interval '10 minutes')",
    )
    execute(
        database_url,
        "INSERT INTO pipeline.sender (slot, token, worker, started_at, lease_expires_at)"
        " VALUES (1, gen_random_uuid(), 'a:1:9', now(), now() + interval '1 minute'),"
        " (2, NULL, NULL, NULL, '-infinity')",
    )

    now = status(database_url, senders=3)
    shown = run("status", database_url=database_url, senders=3).out

    assert [worker["name"] for worker in now["workers"]] == ["a:1"]
    assert [scheduler["name"] for scheduler in now["schedulers"]] == ["a:2"]
    assert [sender["worker"] for sender in now["senders"]] == ["a:1:9"]
    assert "1 of 3 at work: a:1:9" in shown
