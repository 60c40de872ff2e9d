"""Trouble of one sender in a shared turn is that one's alone; trouble of all loses nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg2
import pytest

from pipeline import sending, settling, stock
from pipeline.database import connect
from pipeline.sending import Sender
from tests.support.installation import Installation
from tests.support.smtp_server import Rule, ScriptedServer
from tests.support.turns import IN_USE, prepare, refuse, total
from tests.support.waiting import wait_until

UNBEGUN = (
    "SELECT id FROM pipeline.delivery WHERE state = 'sending' AND NOT EXISTS ("
    "SELECT FROM pipeline.delivery_attempt WHERE delivery_id = delivery.id)"
)


UNBEGUN_RECEIVERS = UNBEGUN.replace("SELECT id", "SELECT receiver_id", 1) + " LIMIT 1"

#: What is logged when an outcome can't be written at once.
WAITS = "its outcome waits for the database"


@dataclass(frozen=True)
class Locks:
    """Rows that somebody's transaction has locked."""

    count: int
    release: Callable[[], None]


@contextmanager
def locked(installation: Installation, rows: str) -> Iterator[Locks]:
    """Somebody's transaction has locked these rows while the block runs, or until `release`."""
    with closing(connect(installation.url)) as shop:
        shop.autocommit = False
        with shop.cursor() as cursor:
            cursor.execute(rows + " FOR UPDATE")
            yield Locks(len(cursor.fetchall()), shop.rollback)
        shop.rollback()


def sent_in_the_end(installation: Installation) -> int:
    """How many are sent when the leases of what waits for them are over."""
    installation.query(
        "UPDATE pipeline.delivery SET lease_expires_at = now() WHERE state = 'sending'"
    )
    installation.query("UPDATE pipeline.sender SET lease_expires_at = now()")
    installation.recovery.run()
    installation.query("UPDATE pipeline.delivery SET next_attempt_at = now()")
    return installation.send()["sent"]


def troubles(senders: list[Any]) -> list[type]:
    """What senders raised, of those that did."""
    return [type(error) for sender in senders if (error := sender.exception())]


def test_one_outcome_that_can_not_be_written_keeps_no_other(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trigger refuses one delivery: its sender tells, the others' outcomes are written."""
    monkeypatch.setattr(settling, "PATIENCE", timedelta(0))
    with ScriptedServer([Rule("dot", hold="gate", times=4)]) as server:
        prepare(installation, server, 20)
        refuse(installation, "not this one", "NEW.state = 'sent' AND NEW.receiver_id = 'p7'")
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
        refuse(installation, "not today", "NEW.state = 'sent'")
        with pytest.raises(psycopg2.Error, match="not today"):
            installation.send()
    assert installation.states() == {"transmitting": 1, "queued": 9}


def test_a_row_that_a_shop_has_locked_keeps_one_sender_and_no_other(
    installation: Installation, caplog: pytest.LogCaptureFixture
) -> None:
    """The shop's transaction is open while the mail is sent: its outcome waits, by itself."""
    caplog.set_level("INFO", logger="pipeline.settling")
    row = "SELECT FROM pipeline.email_notification_log WHERE receiver_id = 'p7'"
    with ScriptedServer() as server:
        prepare(installation, server, 20)
        with locked(installation, row) as locks, installation.senders(4) as senders:
            try:
                wait_until(lambda: installation.states().get("sent") == 19, timeout=10)
                wait_until(lambda: WAITS in caplog.text, timeout=10)
                assert installation.states()["transmitting"] == 1
            finally:
                locks.release()
        assert troubles(senders) == [psycopg2.errors.LockNotAvailable]
        assert not server.duplicate_ids()
    assert installation.states() == {"sent": 20}


def test_an_outcome_that_waits_is_written_while_other_senders_go_on(
    installation: Installation, caplog: pytest.LogCaptureFixture
) -> None:
    """Also that of the sender that began the turn: what is known is not kept in memory."""
    caplog.set_level("INFO", logger="pipeline.settling")
    rules = [Rule("dot", hold="first", times=1), Rule("dot", hold="second", times=1)]
    with ScriptedServer(rules) as server, ThreadPoolExecutor(2) as pool:
        prepare(installation, server, 2)
        sender = Sender(installation.url, installation.settings, installation.doorbells)
        first = pool.submit(sender.answer)
        server.wait_until_held("first")
        row = (
            "SELECT FROM pipeline.email_notification_log AS row WHERE delivery_id = "
            "(SELECT id FROM pipeline.delivery WHERE state = 'transmitting')"
        )
        with locked(installation, row) as locks:
            second = pool.submit(sender.answer)
            server.wait_until_held("second")
            server.release("first")
            wait_until(lambda: WAITS in caplog.text, timeout=30)
            locks.release()
            assert isinstance(first.exception(120), psycopg2.errors.LockNotAvailable)
            assert installation.states() == {"sent": 1, "transmitting": 1}
        server.release("second")
        assert second.result(120)["sent"] == 1
    assert installation.states() == {"sent": 2}


def test_one_that_is_locked_before_it_has_begun_keeps_no_other(installation: Installation) -> None:
    """It waits for its lease; all others are sent, by the same sender."""
    with ScriptedServer([Rule("dot", hold="gate", times=1)]) as server:
        prepare(installation, server, 20)
        with installation.senders(1) as senders:
            server.wait_until_held("gate")
            with locked(installation, f"{UNBEGUN} LIMIT 1") as locks:
                assert locks.count == 1
                server.release("gate")
                assert senders[0].result(120) == {"sent": 19}
        assert installation.states() == {"sent": 19, "sending": 1}
        assert sent_in_the_end(installation) == 1
        assert not server.duplicate_ids()


def test_when_all_are_locked_before_they_have_begun_the_turn_ends(
    installation: Installation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What another sender has in hand comes to its end all the same; places are given back."""
    monkeypatch.setattr(stock, "RELEASE_PATIENCE", 0.0)
    rules = [Rule("dot", hold="first", times=1), Rule("dot", hold="second", times=1)]
    with ScriptedServer(rules) as server:
        prepare(installation, server, 20)
        with installation.senders(2) as senders:
            server.wait_until_held("first")
            server.wait_until_held("second")
            with locked(installation, UNBEGUN) as locks:
                assert locks.count == 18
                server.release("first")
                wait_until(lambda: installation.value(IN_USE) == 1, timeout=30)
                wait_until(lambda: caplog.text.count("until its lease is over") == 18, timeout=30)
            server.release("second")
        assert troubles(senders) == [psycopg2.errors.LockNotAvailable] * 2
        assert installation.states() == {"sent": 2, "sending": 18}
        assert installation.value(IN_USE) == 0
        assert sent_in_the_end(installation) == 18
        assert not server.duplicate_ids()


def test_what_can_not_be_put_back_at_once_is_tried_again(installation: Installation) -> None:
    """A pass of stacking has locked the stack for longer than a sender waits."""
    with ScriptedServer([Rule("dot", hold="gate", times=1)]) as server:
        prepare(installation, server, 20)
        stopping = threading.Event()
        with (
            ThreadPoolExecutor(1) as pool,
            closing(connect(installation.url)) as stacker,
            stacker.cursor() as cursor,
        ):
            sender = pool.submit(installation.send, should_stop=stopping.is_set)
            server.wait_until_held("gate")
            receiver = installation.value(
                "SELECT receiver_id FROM (" + UNBEGUN_RECEIVERS + ") AS one"
            )
            cursor.execute(
                "BEGIN; SELECT pg_advisory_xact_lock(pipeline.stack_key(%s, 'issue', '1'))",
                (receiver,),
            )
            stopping.set()
            wait_until(lambda: installation.states().get("queued") == 18, timeout=30)
            assert installation.states()["sending"] == 1
            cursor.execute("ROLLBACK")
            wait_until(lambda: installation.states().get("queued") == 19, timeout=30)
            server.release("gate")
            assert sender.result(120) == {"sent": 1}
    assert installation.states() == {"sent": 1, "queued": 19}


def test_one_attempt_that_can_not_be_begun_keeps_no_other(installation: Installation) -> None:
    """A trigger refuses to have it written down."""
    with ScriptedServer() as server:
        prepare(installation, server, 20)
        refused = installation.value("SELECT id::text FROM pipeline.delivery ORDER BY id LIMIT 1")
        refuse(installation, "not this", f"NEW.delivery_id = '{refused}'", on="delivery_attempt")
        assert installation.send() == {"sent": 19}
        assert installation.states() == {"sent": 19, "sending": 1}
        installation.query("DROP TRIGGER refuse ON pipeline.delivery_attempt")
        assert sent_in_the_end(installation) == 1
    assert installation.states() == {"sent": 20}


def test_nothing_is_sent_while_nobody_knows_when_the_relay_may_be_given_it(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has locked the relay's row: all is put back, and costs no attempt."""
    monkeypatch.setattr(stock, "SHARED_LOCK_TIMEOUT", 300)
    with ScriptedServer() as server:
        prepare(installation, server, 20, relay_rate=1000.0)
        installation.send()
        assert installation.states() == {"sent": 20}
        installation.notify_many(20, items=2)
        installation.stack()
        with locked(installation, "SELECT FROM pipeline.relay") as locks:
            assert locks.count == 1
            with pytest.raises(psycopg2.errors.LockNotAvailable):
                installation.send()
        waiting = installation.states()["queued"]
        assert installation.states() == {"sent": 20, "queued": waiting}
        assert (
            installation.value(
                "SELECT sum(attempt_count) FROM pipeline.delivery WHERE state = 'queued'"
            )
            == 0
        )
        assert installation.value(IN_USE) == 0
        assert installation.send() == {"sent": waiting}
        assert not server.duplicate_ids()


def test_places_that_can_not_be_given_back_are_free_when_their_leases_are_over(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has locked them: the sender that was to leave tells, the other one goes on."""
    monkeypatch.setattr(sending, "SHARED_LOCK_TIMEOUT", 300)
    rules = [Rule("dot", hold="dot", times=1), Rule("rcpt", hold="rcpt", skip=1, times=1)]
    with ScriptedServer(rules) as server:
        prepare(installation, server, 2)
        with installation.senders(2) as senders:
            server.wait_until_held("dot")
            server.wait_until_held("rcpt")
            with locked(installation, "SELECT FROM pipeline.sender"):
                server.release("dot")
                wait_until(lambda: any(sender.done() for sender in senders), timeout=30)
            server.release("rcpt")
        assert troubles(senders) == [psycopg2.errors.LockNotAvailable]
        assert installation.states() == {"sent": 2}
        assert server.open_connection_count == 0
        installation.query("UPDATE pipeline.sender SET lease_expires_at = now()")
        installation.notify_many(1, items=2)
        installation.stack()
        assert installation.send()["sent"] >= 1


def test_one_marker_that_can_not_be_set_keeps_no_other(installation: Installation) -> None:
    """A trigger refuses one delivery: that one is tried again later, the others are sent."""
    with ScriptedServer([Rule("rcpt", hold="gate", times=4)]) as server:
        prepare(installation, server, 20)
        refuse(
            installation, "not this one", "NEW.state = 'transmitting' AND NEW.receiver_id = 'p7'"
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


LEASED = "SELECT state FROM pipeline.delivery WHERE lease_expires_at > now()"


def test_a_database_that_goes_away_takes_the_claims_along_that_nobody_has_begun(
    installation: Installation,
) -> None:
    """Two senders wait for replies, and keep what they have in hand; the rest is let go, so that
    others may have it long before the replies come."""
    with (
        ScriptedServer([Rule("reply", hold="gate", times=2)]) as server,
        ThreadPoolExecutor(3) as pool,
    ):
        prepare(installation, server, 20, lease=timedelta(seconds=3))
        sender = Sender(installation.url, installation.settings, installation.doorbells)
        senders = [pool.submit(sender.answer) for _ in range(2)]
        server.wait_until_held("gate", count=2)
        installation.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = 'pipeline sender'"
        )
        # It is found out by whoever comes next.
        senders.append(pool.submit(sender.answer))
        assert isinstance(senders[-1].exception(120), psycopg2.Error)
        wait_until(
            lambda: installation.query(LEASED) == [("transmitting",)] * 2,
            timeout=30,
            message=lambda: str(installation.query(LEASED)),
        )
        server.release("gate")
        assert troubles(senders) == [psycopg2.OperationalError] * 3
        assert installation.states() == {"sent": 2, "sending": 18}
        assert sent_in_the_end(installation) == 18
        assert not server.duplicate_ids()


def test_a_fault_of_ours_loses_no_reply_and_keeps_nothing(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two senders wait for replies when it happens: those are waited for, and written."""
    is_broken = threading.Event()
    supply = stock.Stock.supply

    def broken(*arguments: Any) -> bool:
        if is_broken.is_set():
            raise KeyError("a fault of ours")
        return supply(*arguments)

    monkeypatch.setattr(stock.Stock, "supply", broken)
    with (
        ScriptedServer([Rule("reply", hold="gate", times=2)]) as server,
        ThreadPoolExecutor(3) as pool,
    ):
        prepare(installation, server, 20)
        sender = Sender(installation.url, installation.settings, installation.doorbells)
        senders = [pool.submit(sender.answer) for _ in range(2)]
        server.wait_until_held("gate", count=2)
        is_broken.set()
        senders.append(pool.submit(sender.answer))
        assert isinstance(senders[-1].exception(120), KeyError)
        assert installation.states() == {"transmitting": 2, "queued": 18}
        server.release("gate")
        assert troubles(senders) == [KeyError] * 3
    assert installation.states() == {"sent": 2, "queued": 18}


@pytest.mark.parametrize("trouble", ["relay", "database"])
def test_a_turn_that_begins_nothing_more_takes_no_sender_in(
    installation: Installation, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """One of its senders waits for a reply, for minutes; what comes next is sent in a turn of its
    own when the trouble is over."""
    monkeypatch.setattr(stock, "SHARED_LOCK_TIMEOUT", 300)
    full = Rule("mail", skip=1, times=1, reply="452 4.3.1 Full")
    rules = [Rule("reply", hold="gate", times=1), *([full] if trouble == "relay" else [])]
    with ScriptedServer(rules) as server, ThreadPoolExecutor(1) as pool:
        prepare(installation, server, 1, relay_rate=1000.0)
        sender = Sender(installation.url, installation.settings, installation.doorbells)
        first = pool.submit(sender.answer)
        server.wait_until_held("gate")
        try:
            installation.notify_many(1, items=3)
            installation.stack()
            if trouble == "relay":
                assert sender.answer() == {"deferred": 1}
                installation.query("UPDATE pipeline.relay SET retry_at = now()")
            else:
                with (
                    locked(installation, "SELECT FROM pipeline.relay"),
                    pytest.raises(psycopg2.errors.LockNotAvailable),
                ):
                    sender.answer()
            installation.query(
                "UPDATE pipeline.delivery SET state = 'queued', next_attempt_at = now() "
                "WHERE state = 'deferred'"
            )
            waiting = installation.states()["queued"]
            assert sender.answer() == {"sent": waiting}
        finally:
            server.release("gate")
        first.exception(120)
    assert set(installation.states()) == {"sent"}


def test_a_relay_is_tried_though_a_sender_waits_for_its_reply(installation: Installation) -> None:
    """It is due to be tried, and so is the mail: the one that is busy is not counted on."""
    with ScriptedServer([Rule("reply", hold="gate", times=1)]) as server:
        prepare(installation, server, 1)
        with installation.senders(1) as senders:
            server.wait_until_held("gate")
            installation.notify_many(1, items=2)
            installation.stack()
            installation.query(
                "INSERT INTO pipeline.relay (name, failure_count, retry_at) VALUES (%s, 1, now())",
                (installation.settings.smtp_url.partition("//")[2],),
            )
            installation.query(
                "UPDATE pipeline.delivery SET next_attempt_at = now() - interval '1 minute'"
            )
            installation.query("DELETE FROM pipeline.doorbell")
            installation.query("DELETE FROM dramatiq.queue")
            installation.recovery.run()
            assert installation.messages() == 1
            server.release("gate")
        assert total(senders, "sent") >= 1
