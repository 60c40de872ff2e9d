"""Senders of one process share a turn: one thread, a connection each, and common transactions."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg2
import pytest

from pipeline import settling, stock
from pipeline.database import connect
from pipeline.sending import Sender
from tests.support.installation import Installation
from tests.support.smtp_server import Rule, ScriptedServer
from tests.support.waiting import wait_until

#: The transaction that wrote each delivery's state last.
WRITTEN_BY = "SELECT count(DISTINCT xmin::text) FROM pipeline.delivery WHERE state = %s"

IN_USE = "SELECT count(*) FROM pipeline.sender WHERE token IS NOT NULL"


def total(senders: list[Future[dict[str, int]]], outcome: str) -> int:
    return sum(sender.result().get(outcome, 0) for sender in senders)


def prepare(installation: Installation, server: ScriptedServer, mails: int, **changes: Any) -> None:
    installation.set(smtp_url=server.url, senders=4, **changes)
    installation.notify_many(mails)
    installation.stack()


@pytest.mark.parametrize("extensions", [(), ("PIPELINING",)])
def test_senders_of_a_process_send_at_the_same_time(
    installation: Installation, extensions: tuple[str, ...]
) -> None:
    """Each has a connection of its own, and all mails are on their way at once."""
    with ScriptedServer([Rule("dot", hold="gate")], extensions=extensions) as server:
        prepare(installation, server, 40)
        with installation.senders(4) as senders:
            server.wait_until_held("gate", count=4)
            assert installation.states()["transmitting"] == 4
            server.release("gate")
        assert total(senders, "sent") == 40
        assert (server.accepted_count, server.most_connections) == (40, 4)
        assert not server.duplicate_ids()
    assert installation.states() == {"sent": 40}
    assert installation.value(IN_USE) == 0


def test_what_several_senders_need_is_one_transaction(installation: Installation) -> None:
    """Of a server that answers at once, four outcomes are written together, and four markers."""
    with ScriptedServer([Rule("rcpt", hold="gate", times=4)]) as server:
        prepare(installation, server, 40)
        with installation.senders(4) as senders:
            server.wait_until_held("gate", count=4)
            server.release("gate")
        assert total(senders, "sent") == 40
    assert installation.value(WRITTEN_BY, ("sent",)) < 40


def test_a_server_that_keeps_one_sender_waiting_keeps_no_other(installation: Installation) -> None:
    """Its lane waits for the reply; the others send what there is, and give their places back."""
    with ScriptedServer([Rule("reply", hold="gate", times=1)]) as server:
        prepare(installation, server, 40)
        with installation.senders(4) as senders:
            wait_until(lambda: installation.states().get("sent") == 39, timeout=30)
            wait_until(lambda: installation.value(IN_USE) == 1, timeout=30)
            assert installation.states()["transmitting"] == 1
            # There is room for whoever is called next.
            installation.notify_many(10, items=2)
            installation.stack()
            assert installation.send()["sent"] >= 10
            server.release("gate")
        assert total(senders, "sent") == 40
        assert not server.duplicate_ids()
    assert set(installation.states()) == {"sent"}


def test_a_sender_that_comes_later_joins(installation: Installation) -> None:
    """While one waits for the server, another one of the same process begins beside it."""
    with ScriptedServer([Rule("dot", hold="gate", times=1)]) as server:
        prepare(installation, server, 1)
        sender = Sender(installation.url, installation.settings, installation.doorbells)
        first = threading.Thread(target=sender.answer)
        first.start()
        server.wait_until_held("gate")
        installation.notify_many(3, items=2)
        installation.stack()
        assert sender.answer()["sent"] >= 3
        assert installation.states()["transmitting"] == 1
        server.release("gate")
        first.join(60)
    assert set(installation.states()) == {"sent"}


def test_one_outcome_that_can_not_be_written_keeps_no_other(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trigger refuses one delivery: its sender tells, the others' outcomes are written."""
    monkeypatch.setattr(settling, "PATIENCE", timedelta(0))
    with ScriptedServer([Rule("dot", hold="gate", times=4)]) as server:
        prepare(installation, server, 20)
        installation.query(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE 'not this one'; END $$"
        )
        installation.query(
            "CREATE TRIGGER refuse BEFORE UPDATE ON pipeline.delivery FOR EACH ROW "
            "WHEN (NEW.state = 'sent' AND NEW.receiver_id = 'p7') EXECUTE FUNCTION refuse()"
        )
        with installation.senders(4) as senders:
            server.wait_until_held("gate", count=4)
            server.release("gate")
        errors = [sender.exception() for sender in senders]
        assert [str(error).splitlines()[0] for error in errors if error] == ["not this one"]
        assert server.accepted_count == 20
    assert installation.states() == {"sent": 19, "transmitting": 1}


def test_what_is_claimed_is_put_back_when_its_only_sender_has_trouble(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome of its first mail can't be written: the rest need not wait for its lease."""
    monkeypatch.setattr(settling, "PATIENCE", timedelta(0))
    with ScriptedServer() as server:
        prepare(installation, server, 10)
        installation.query(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE 'not today'; END $$"
        )
        installation.query(
            "CREATE TRIGGER refuse BEFORE UPDATE ON pipeline.delivery FOR EACH ROW "
            "WHEN (NEW.state = 'sent') EXECUTE FUNCTION refuse()"
        )
        with pytest.raises(psycopg2.Error, match="not today"):
            installation.send()
    assert installation.states() == {"transmitting": 1, "queued": 9}


def test_a_row_that_a_shop_has_locked_keeps_one_sender_and_no_other(
    installation: Installation,
) -> None:
    """The shop's transaction is open while the mail is sent: its outcome waits, by itself."""
    with ScriptedServer() as server, closing(connect(installation.url)) as shop:
        prepare(installation, server, 20)
        shop.autocommit = False
        with shop.cursor() as cursor:
            cursor.execute(
                "SELECT FROM pipeline.email_notification_log WHERE receiver_id = 'p7' FOR UPDATE"
            )
        with installation.senders(4) as senders:
            wait_until(lambda: installation.states().get("sent") == 19, timeout=60)
            assert installation.states()["transmitting"] == 1
            shop.rollback()
        outcomes = [sender.exception() for sender in senders]
        assert [type(error) for error in outcomes if error] == [psycopg2.errors.LockNotAvailable]
        assert not server.duplicate_ids()
    assert installation.states() == {"sent": 20}


def test_one_marker_that_can_not_be_set_keeps_no_other(installation: Installation) -> None:
    """A trigger refuses one delivery: that one is tried again later, the others are sent."""
    with ScriptedServer([Rule("rcpt", hold="gate", times=4)]) as server:
        prepare(installation, server, 20)
        installation.query(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE 'not this one'; END $$"
        )
        installation.query(
            "CREATE TRIGGER refuse BEFORE UPDATE ON pipeline.delivery FOR EACH ROW "
            "WHEN (NEW.state = 'transmitting' AND NEW.receiver_id = 'p7') "
            "EXECUTE FUNCTION refuse()"
        )
        with installation.senders(4) as senders:
            server.wait_until_held("gate", count=4)
            server.release("gate")
        assert (total(senders, "sent"), total(senders, "deferred")) == (19, 1)
        assert server.accepted_count == 19
    assert installation.states() == {"sent": 19, "deferred": 1}


def test_a_database_that_goes_away_takes_only_what_was_not_sent(
    installation: Installation,
) -> None:
    """Four senders: two wait for the reply to the dot, two have not come as far. The replies are
    written over new connections; the others cost no attempt and are sent later, once."""
    rules = [Rule("reply", hold="reply", times=2), Rule("rcpt", hold="rcpt", skip=2, times=2)]
    with ScriptedServer(rules) as server:
        prepare(installation, server, 4)
        with installation.senders(4) as senders:
            server.wait_until_held("reply", count=2)
            server.wait_until_held("rcpt", count=2)
            installation.query(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name = 'pipeline sender'"
            )
            server.release("rcpt")
            wait_until(lambda: sum(sender.done() for sender in senders) == 2, timeout=30)
            server.release("reply")
        assert all(isinstance(sender.exception(), psycopg2.Error) for sender in senders)
        assert installation.states() == {"sent": 2, "queued": 2}
        assert installation.value("SELECT sum(attempt_count) FROM pipeline.delivery") == 2
        installation.query("UPDATE pipeline.sender SET lease_expires_at = now()")
        assert installation.send() == {"sent": 2}
        assert server.accepted_count == 4
        assert not server.duplicate_ids()


def test_a_relay_that_fails_ends_the_turn_of_all(installation: Installation) -> None:
    """One is told that its disk is full: the others send what they have in hand, and no more."""
    rules = [
        Rule("mail", skip=4, times=1, reply="452 4.3.1 Full"),
        Rule("dot", hold="gate", times=4),
    ]
    with ScriptedServer(rules) as server:
        prepare(installation, server, 40)
        with installation.senders(4) as senders:
            server.wait_until_held("gate", count=4)
            server.release("gate")
        assert total(senders, "sent") == server.accepted_count < 12
        assert total(senders, "deferred") == 1
    assert set(installation.states()) == {"sent", "deferred", "queued"}
    assert installation.value("SELECT failure_count FROM pipeline.relay") == 1
    assert installation.value(IN_USE) == 0


@pytest.mark.parametrize(("look_back", "place"), [(0.0, 4), (3600.0, 7)])
def test_what_became_due_earlier_is_found_by_a_turn_that_is_beyond_it(
    installation: Installation,
    monkeypatch: pytest.MonkeyPatch,
    look_back: float,
    place: int,
) -> None:
    """Claims go on where the last one ended, and begin anew now and then and at the end."""
    monkeypatch.setattr(stock, "LOOK_BACK", look_back)
    with ScriptedServer([Rule("dot", hold="gate", skip=2, times=1)]) as server:
        prepare(installation, server, 7, chunk=2)
        sending = threading.Thread(target=installation.send)
        sending.start()
        server.wait_until_held("gate")
        installation.add_person("older")
        installation.notify("older")
        installation.stack()
        installation.query(
            "UPDATE pipeline.delivery SET next_attempt_at = now() - interval '1 hour' "
            "WHERE receiver_id = 'older'"
        )
        server.release("gate")
        sending.join(60)
        sent = [accepted.recipients[0] for accepted in server.accepted]
    assert len(sent) == 8
    assert sent.index("older@people.example") == place
