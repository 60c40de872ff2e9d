"""Reading that takes long is done beside the turn: neither lanes nor replies wait for it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg2
import pytest

from pipeline import reader, reading
from pipeline.database import connect
from pipeline.reading import Subject
from pipeline.sending import Sender
from tests.support.installation import Installation
from tests.support.smtp_server import Rule, ScriptedServer
from tests.support.turns import prepare, total
from tests.support.waiting import wait_until

READERS = (
    "FROM pg_stat_activity WHERE datname = current_database() "
    "AND application_name = 'pipeline reader'"
)


@pytest.fixture(autouse=True)
def _long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever time it takes is long."""
    monkeypatch.setattr(reader, "SLOW", 0.0)
    monkeypatch.setattr(reading, "LOCK_TIMEOUT", 120_000)


def test_a_reply_is_written_down_while_another_mail_is_being_read(
    installation: Installation,
) -> None:
    """A shop rebuilds its users' table meanwhile."""
    with (
        ScriptedServer([Rule("reply", hold="gate", times=1)]) as server,
        closing(connect(installation.url)) as shop,
        shop.cursor() as cursor,
        ThreadPoolExecutor(2) as pool,
    ):
        prepare(installation, server, 1)
        sender = Sender(installation.url, installation.settings, installation.doorbells)
        senders = [pool.submit(sender.answer)]
        server.wait_until_held("gate")
        cursor.execute("BEGIN; LOCK TABLE pipeline.recipient IN ACCESS EXCLUSIVE MODE")
        try:
            installation.notify("p1", "other")
            installation.stack()
            senders.append(pool.submit(sender.answer))
            wait_until(
                lambda: installation.value(
                    f"SELECT count(*) {READERS} AND wait_event_type = 'Lock'"
                )
            )
            assert installation.states() == {"transmitting": 1, "sending": 1}
            server.release("gate")
            wait_until(lambda: installation.states() == {"sent": 1, "sending": 1})
        finally:
            cursor.execute("ROLLBACK")
        assert total(senders, "sent") == 2
    assert installation.states() == {"sent": 2}


def test_one_that_can_not_be_read_beside_keeps_no_other(installation: Installation) -> None:
    """The shop's view fails for one recipient: that mail is tried later."""
    installation.query("ALTER TABLE pipeline.recipient RENAME TO people")
    installation.query(
        "CREATE VIEW pipeline.recipient AS SELECT id, email, "
        "display_name || 1 / (id <> 'p7')::int AS display_name, locale, time_zone, active "
        "FROM pipeline.people"
    )
    installation.query("CREATE RULE made AS ON INSERT TO pipeline.recipient DO INSTEAD NOTHING")
    installation.query(
        "INSERT INTO pipeline.people (id, email, display_name, time_zone) "
        "SELECT 'p' || n, 'p' || n || '@people.example', 'Person ' || n, 'UTC' "
        "FROM generate_series(1, 20) AS n"
    )
    with ScriptedServer() as server:
        prepare(installation, server, 20)
        with installation.senders(2) as senders:
            pass
        assert (total(senders, "sent"), total(senders, "deferred")) == (19, 1)
    assert installation.states() == {"sent": 19, "deferred": 1}
    assert "division by zero" in installation.value(
        "SELECT reason FROM pipeline.delivery WHERE state = 'deferred'"
    )


def test_a_reader_whose_connection_breaks_makes_another(installation: Installation) -> None:
    """No mail is given up for it."""
    with ScriptedServer([Rule("mail", hold="gate", skip=2, times=1)]) as server:
        prepare(installation, server, 20)
        with installation.senders(1) as senders:
            server.wait_until_held("gate")
            ended = installation.query(f"SELECT pg_terminate_backend(pid) {READERS}")
            assert ended == [(True,)]
            server.release("gate")
        assert senders[0].result() == {"sent": 20}
    wait_until(lambda: installation.value(f"SELECT count(*) {READERS}") == 0)


def test_what_does_not_fit_into_what_is_read_at_once_is_read_after_it(
    installation: Installation,
) -> None:
    """Four mails of 2.4 MB are asked for together; 4 MB are read at once."""
    with ScriptedServer([Rule("mail", hold="gate", times=4)]) as server:
        prepare(installation, server, 4)
        installation.query(
            "INSERT INTO pipeline.email_notification_log "
            "(receiver_id, entity_name, entity_identifier, data) "
            "SELECT 'p' || n, 'issue', 'big', jsonb_build_object('verb', 'updated', 'field', "
            "'description', 'old_value', 'x', 'new_value', repeat('x', 200000)) "
            "FROM generate_series(1, 4) AS n, generate_series(1, 12)"
        )
        installation.stack()
        with installation.senders(4) as senders:
            server.wait_until_held("gate", count=4)
            server.release("gate")
            wait_until(lambda: all(sender.done() for sender in senders), timeout=15)
        assert total(senders, "sent") == 8


def test_a_reader_that_can_not_connect_fails_no_mail(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database has no room for one more: the turn reads by itself."""
    asked = []

    def refused(*_: Any, **__: Any) -> None:
        asked.append(True)
        raise psycopg2.OperationalError("sorry, too many clients already")

    monkeypatch.setattr(reader, "connect", refused)
    with ScriptedServer() as server:
        prepare(installation, server, 10)
        assert installation.send() == {"sent": 10}
    assert asked


def test_what_nothing_comes_of_is_left_to_who_asked(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is not asked for again and again."""
    times: list[int] = []

    def nothing(*_: Any) -> dict[str, Any]:
        times.append(1)
        return {}

    monkeypatch.setattr(reader, "read_at_once", nothing)
    woken = threading.Event()
    asked = reader.Reader(installation.url, reader.Pace(), woken.set)
    asked.ask(Subject("1", "p1", "issue", "1", 1))
    assert woken.wait(60)
    assert asked.has("1")
    assert asked.take("1", installation.connection) is None
    asked.stop()
    assert len(times) == 1


def test_without_a_thread_to_be_had_the_turn_reads_by_itself(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system has no more of them."""

    class NoThread(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr("pipeline.reader.threading.Thread", NoThread)
    asked = reader.Reader("", reader.Pace(), lambda: None)
    asked.ask(Subject("1", "p1", "issue", "1", 1))
    assert asked.has("1")
    assert asked.take("1", installation.connection) is None
