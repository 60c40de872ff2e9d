"""Senders of one process share a turn: one thread, a connection each, and common transactions."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from pipeline import stock
from pipeline.sending import Sender
from pipeline.smtp import session
from tests.support.installation import Installation
from tests.support.smtp_server import Rule, ScriptedServer
from tests.support.turns import IN_USE, prepare, total
from tests.support.waiting import wait_until

#: The transaction that wrote each delivery's state last.
WRITTEN_BY = "SELECT count(DISTINCT xmin::text) FROM pipeline.delivery WHERE state = %s"


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


def test_a_place_is_given_back_after_its_connection(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the relay has not said goodbye nobody else may connect to it; others go on."""
    monkeypatch.setattr(session, "QUIT_TIMEOUT", 120.0)
    rules = [Rule("reply", hold="reply", times=1), Rule("quit", hold="quit", times=1)]
    with ScriptedServer(rules) as server:
        prepare(installation, server, 20)
        with installation.senders(2) as senders:
            server.wait_until_held("reply")
            server.wait_until_held("quit")
            assert installation.value(IN_USE) == 2
            server.release("quit")
            wait_until(lambda: installation.value(IN_USE) == 1, timeout=30)
            server.release("reply")
        assert total(senders, "sent") == server.accepted_count == 20
    assert installation.value(IN_USE) == 0


def test_the_first_of_the_senders_gives_its_connection_back_like_the_others(
    installation: Installation,
) -> None:
    """The one that began the turn is through, another one waits: a third may take its place."""
    rules = [Rule("dot", hold="first", times=1), Rule("dot", hold="second", times=1)]
    with ScriptedServer(rules) as server:
        prepare(installation, server, 1, senders=2)
        sender = Sender(installation.url, installation.settings, installation.doorbells)
        threads = [threading.Thread(target=sender.answer) for _ in range(2)]
        threads[0].start()
        server.wait_until_held("first")
        installation.notify_many(1, items=2)
        installation.stack()
        threads[1].start()
        server.wait_until_held("second")
        server.release("first")
        threads[0].join(120)
        assert installation.value(IN_USE) == server.open_connection_count == 1
        installation.notify_many(1, items=3)
        installation.stack()
        assert installation.send()["sent"] >= 1
        server.release("second")
        threads[1].join(120)
        assert server.most_connections == 2
    assert set(installation.states()) == {"sent"}


def test_what_is_put_back_calls_other_senders(installation: Installation) -> None:
    """The relay has enough connections of others: what was claimed is due again before the only
    sender of this process leaves, so that it is counted when doorbells are rung."""
    with ScriptedServer([Rule("connect", reply="421 4.3.2 Too busy")]) as server:
        prepare(installation, server, 20)
        installation.query(
            "INSERT INTO pipeline.sender (slot, token, lease_expires_at) "
            "VALUES (1, gen_random_uuid(), now() + interval '1 hour')"
        )
        # The other one is busy: mail has waited for long.
        installation.query(
            "UPDATE pipeline.delivery SET next_attempt_at = now() - interval '1 minute'"
        )
        installation.query("DELETE FROM pipeline.doorbell")
        installation.query("DELETE FROM dramatiq.queue")
        assert installation.send() == {"deferred": 1}
    assert installation.states() == {"deferred": 1, "queued": 19}
    assert installation.messages() > 0


@pytest.mark.parametrize("ends", ["stopped", "late"])
def test_what_has_not_begun_is_put_back_though_all_lanes_wait_for_servers(
    installation: Installation, ends: str
) -> None:
    """At the end of the slice, or when the worker is being stopped, others may send it."""
    stopping = threading.Event()
    with ScriptedServer([Rule("reply", hold="gate", times=1)]) as server:
        prepare(
            installation,
            server,
            20,
            slice=timedelta(seconds=1) if ends == "late" else timedelta(hours=1),
        )
        sending = threading.Thread(
            target=installation.send, kwargs={"should_stop": stopping.is_set}
        )
        sending.start()
        server.wait_until_held("gate")
        if ends == "stopped":
            assert installation.states() == {"transmitting": 1, "sending": 19}
            stopping.set()
        wait_until(lambda: installation.states() == {"transmitting": 1, "queued": 19}, timeout=30)
        server.release("gate")
        sending.join(120)
    assert installation.states() == {"sent": 1, "queued": 19}


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
