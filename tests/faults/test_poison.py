"""What breaks one thing breaks that alone: odd rows, odd defaults, a row that can't be changed."""

from __future__ import annotations

import threading
from contextlib import closing
from datetime import timedelta
from types import ModuleType

import psycopg2
import pytest

from pipeline import database, delivery, reading
from pipeline.database import connect, transaction
from pipeline.delivery import Claimed
from pipeline.replies import Outcome, Reply, Scope, Stage
from pipeline.settling import write_outcome
from pipeline.smtp import Result
from tests.support.installation import Installation
from tests.support.smtp_server import ScriptedServer
from tests.support.waiting import wait_until

LEASE = timedelta(seconds=30)
SENT = Result(Outcome.SENT, Scope.MESSAGE, Stage.REPLY, Reply(250, "2.0.0", "Ok"))
REFUSED = Result(Outcome.FAILED, Scope.MESSAGE, Stage.REPLY, Reply(554, "5.6.0", "No"))


def stack(installation: Installation, *receivers: str) -> None:
    for receiver in receivers:
        installation.add_person(receiver)
        installation.notify(receiver)
    installation.stack()


def claim(installation: Installation, limit: int = 1) -> list[Claimed]:
    with transaction(installation.connection) as cursor:
        claims = delivery.claim(cursor, limit=limit, lease=LEASE)
        for claimed in claims:
            assert delivery.begin(cursor, claimed, worker="test", lease=LEASE)
    return claims


def mark(installation: Installation, claimed: Claimed) -> bool:
    # As an attempt does it: by itself.
    with installation.connection.cursor() as cursor:
        return delivery.mark_transmitting(cursor, claimed, lease=LEASE)


def settle(installation: Installation, claimed: Claimed, result: Result = SENT) -> None:
    with transaction(installation.connection) as cursor:
        write_outcome(
            cursor, installation.settings, claimed, result, relay_pause=timedelta(seconds=1)
        )


def let_leases_run_out(installation: Installation) -> None:
    installation.query("UPDATE pipeline.delivery SET lease_expires_at = now() - interval '1 s'")


@pytest.mark.parametrize("urgent", [False, True])
def test_P1_a_row_whose_ids_are_all_empty_is_claimed_too(
    installation: Installation, urgent: bool
) -> None:
    """It comes before every other stack in key order, and is not left behind for ever."""
    installation.query(
        "INSERT INTO pipeline.email_notification_log "
        "(receiver_id, entity_name, entity_identifier, data, urgent) "
        "VALUES ('', '', '', '{}', %s)",
        (urgent,),
    )
    assert installation.stack(urgent_only=urgent).claimed_count == 1
    installation.send()
    assert installation.states() == {"suppressed": 1}


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_database_with_another_default_isolation_is_no_trouble(
    installation: Installation, level: str
) -> None:
    """Each transaction says its own: at a higher level every overlap would be an error."""
    name = installation.value("SELECT current_database()")
    installation.query(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = '{level}'")
    with closing(connect(installation.url)) as opened, transaction(opened) as cursor:
        cursor.execute("SHOW transaction_isolation")
        assert cursor.fetchone() == ("read committed",)


def test_P4_the_marker_is_on_disk_before_the_dot_whatever_synchronous_commit_says(
    installation: Installation,
) -> None:
    """Without it a crash of the database after the dot would make the mail look unsent."""
    name = installation.value("SELECT current_database()")
    installation.query(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
    stack(installation, "ann")
    other = Installation(installation.url)
    try:
        assert other.value("SHOW synchronous_commit") == "off"
        (claimed,) = claim(other)
        before = other.value("SELECT pg_current_wal_insert_lsn()")
        assert mark(other, claimed)
        assert other.value("SELECT pg_current_wal_flush_lsn() > %s::pg_lsn", (before,))
        assert other.value("SHOW synchronous_commit") == "off", "that transaction's alone"
    finally:
        other.close()


def refuse_updates(installation: Installation, receiver: str) -> None:
    """No statement can change this receiver's delivery."""
    installation.query(
        "CREATE FUNCTION pg_temp.refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN RAISE EXCEPTION 'not this one'; END$$;"
        "CREATE TRIGGER refuse BEFORE UPDATE ON pipeline.delivery FOR EACH ROW "
        f"WHEN (OLD.receiver_id = '{receiver}') EXECUTE FUNCTION pg_temp.refuse()"
    )


def test_P6_one_delivery_that_can_not_be_recovered_keeps_no_other_from_it(
    installation: Installation,
) -> None:
    """Recovery goes on with the next one, and with its other steps."""
    stack(installation, "ann", "bea", "cem")
    claims = {claimed.receiver_id: claimed for claimed in claim(installation, 3)}
    assert mark(installation, claims["cem"])
    let_leases_run_out(installation)
    installation.query(
        "UPDATE pipeline.delivery SET lease_expires_at = now() - interval '1 hour' "
        "WHERE receiver_id = 'ann'"
    )
    refuse_updates(installation, "ann")
    with pytest.raises(psycopg2.Error, match="not this one"):
        installation.recovery.run()
    states = dict(installation.query("SELECT receiver_id, state FROM pipeline.delivery"))
    assert states == {"ann": "sending", "bea": "queued", "cem": "queued"}


def test_P6_waits_that_would_overflow_are_as_long_as_they_may_be(
    installation: Installation,
) -> None:
    """One delivery that was uncertain a hundred times does not keep the others so."""
    installation.set(retry_base=timedelta(days=300), retry_cap=timedelta(days=400))
    stack(installation, "ann", "bea")
    for claimed in claim(installation, 2):
        assert mark(installation, claimed)
    let_leases_run_out(installation)
    installation.query(
        "UPDATE pipeline.delivery SET uncertain_count = 100 WHERE receiver_id = 'ann'"
    )
    installation.recovery.run()
    assert installation.states() == {"queued": 2}
    assert installation.value(
        "SELECT next_attempt_at - now() BETWEEN interval '399 days' AND interval '400 days' "
        "FROM pipeline.delivery WHERE receiver_id = 'ann'"
    )


@pytest.mark.parametrize("result", [SENT, REFUSED], ids=["sent", "failed"])
def test_an_outcome_and_recovery_lock_in_the_same_order(
    installation: Installation, result: Result
) -> None:
    """The delivery first, then its attempt: else they would wait for each other."""
    stack(installation, "ann")
    (claimed,) = claim(installation)
    assert mark(installation, claimed)
    other = Installation(installation.url)
    try:
        with transaction(other.connection) as cursor:
            cursor.execute("SELECT FROM pipeline.delivery FOR UPDATE")
            thread = threading.Thread(target=settle, args=(installation, claimed, result))
            thread.start()
            pid = installation.connection.info.backend_pid
            waits = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
            with closing(connect(installation.url)) as third, third.cursor() as looking:

                def is_waiting() -> bool:
                    looking.execute(waits, (pid,))
                    row = looking.fetchone()
                    return row is not None and bool(row[0])

                wait_until(is_waiting)
                looking.execute("SELECT FROM pipeline.delivery_attempt FOR UPDATE NOWAIT")
        thread.join(timeout=10)
        assert installation.states() == {result.outcome.value: 1}
    finally:
        other.close()


@pytest.mark.parametrize(
    ("module", "limit", "value", "told"),
    [
        (database, "STATEMENT_TIMEOUT", 1, "statement timeout"),
        (reading, "LOCK_TIMEOUT", 500, "lock timeout"),
    ],
)
def test_P6_a_look_up_that_never_ends_is_given_up(
    installation: Installation,
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    limit: str,
    value: int,
    told: str,
) -> None:
    """A shop that rebuilds its users' table holds up no sender for longer than the time limits."""
    monkeypatch.setattr(module, limit, value)
    stack(installation, "ann")
    with ScriptedServer() as server:
        installation.set(smtp_url=server.url)
        other = Installation(installation.url)
        try:
            with other.connection.cursor() as cursor:
                cursor.execute("BEGIN; LOCK TABLE pipeline.recipient IN ACCESS EXCLUSIVE MODE")
                assert installation.send() == {"deferred": 1}
                cursor.execute("ROLLBACK")
        finally:
            other.close()
        assert told in installation.delivery()["reason"]
