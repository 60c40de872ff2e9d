"""What an operator may do with a delivery, from every state, and beside everybody else."""

from __future__ import annotations

import threading
import uuid
from datetime import timedelta

import pytest

from pipeline import delivery, operations
from pipeline.database import connect, transaction
from pipeline.operations import Operation, Operations
from pipeline.settlement import settlement_for
from pipeline.smtp import Outcome, Reply, Result, Scope, Stage
from pipeline.states import CANCELLED, RELEASED, RETRIED, STATES
from tests.support.installation import Installation
from tests.support.smtp_server import Rule, ScriptedServer
from tests.support.waiting import wait_until

LEASE = timedelta(seconds=5)
TAKES = {"retry": RETRIED, "release": RELEASED, "cancel": CANCELLED}


@pytest.fixture
def operator(installation: Installation) -> Operations:
    return Operations(installation.connection, installation.settings, installation.doorbells)


def in_state(installation: Installation, state: str, **columns: object) -> str:
    """One delivery with one notification, put into this state."""
    installation.notify("ann")
    installation.stack()
    installation.query("DELETE FROM dramatiq.queue")
    installation.query("DELETE FROM pipeline.doorbell")
    row = {"state": state, "reason": f"because {state}", "attempt_count": 7} | columns
    if state == "sent":
        row["sent_at"] = "2026-11-30 12:00:00+00"
    assignments = ", ".join(f"{name} = %s" for name in row)
    return str(
        installation.query(
            f"UPDATE pipeline.delivery SET {assignments}, updated_at = now() - interval '1 hour',"
            " expires_at = now() + interval '1 minute' RETURNING id::text",
            tuple(row.values()),
        )[0][0]
    )


def act(operator: Operations, verb: str, id_: str) -> Operation:
    done = getattr(operator, verb)(id_)
    assert isinstance(done, Operation)
    return done


def test_the_states_are_those_of_the_schema(installation: Installation) -> None:
    """The names in Python are the ones that the table allows."""
    allowed = installation.value(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'state_is_known'"
    )

    assert all(f"'{state}'" in allowed for state in STATES)
    assert allowed.count("'") == 2 * len(STATES)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("verb", ["retry", "release", "cancel"])
def test_each_verb_takes_what_it_may_and_refuses_the_rest(
    installation: Installation, operator: Operations, verb: str, state: str
) -> None:
    """A refused delivery is left as it was, and the refusal says why."""
    id_ = in_state(installation, state)
    before = installation.delivery()

    done = act(operator, verb, id_)

    after = installation.delivery()
    assert done.was == state
    assert done.is_done == (state in TAKES[verb])
    if done.is_done:
        assert after["state"] == done.state == ("cancelled" if verb == "cancel" else "queued")
        assert f"by an operator, was {state}: because {state}" in after["reason"]
        assert after["updated_at"] > before["updated_at"]
    else:
        assert after == before
        assert done.refusal


@pytest.mark.parametrize("verb", ["retry", "release", "cancel"])
def test_a_delivery_that_is_not_there_is_refused(operator: Operations, verb: str) -> None:
    """An unknown id changes nothing, and says so."""
    done = act(operator, verb, str(uuid.uuid4()))

    assert (done.was, done.is_done) == (None, False)
    assert "no such delivery" in str(done.refusal)


@pytest.mark.parametrize(("verb", "state"), [("retry", "failed"), ("release", "held")])
def test_what_is_sent_again_starts_anew(
    installation: Installation, operator: Operations, verb: str, state: str
) -> None:
    """Attempts and age count from now, and it is due at once."""
    id_ = in_state(installation, state, next_attempt_at="2030-01-01")
    act(operator, verb, id_)

    row = installation.delivery()
    now = installation.value("SELECT now()")
    assert row["attempt_count"] == 0
    assert row["next_attempt_at"] <= now
    assert row["expires_at"] > now + installation.settings.max_age - timedelta(minutes=1)
    assert row["lease_expires_at"] is None


@pytest.mark.parametrize(("verb", "state"), [("retry", "failed"), ("release", "held")])
def test_a_sender_is_called_in_the_same_transaction(
    installation: Installation, operator: Operations, verb: str, state: str
) -> None:
    """One doorbell is there when it is done, and no second one for the next delivery."""
    id_ = in_state(installation, state)
    assert installation.messages() == 0

    act(operator, verb, id_)

    assert installation.messages() == 1
    installation.notify("bob")
    installation.stack()
    assert installation.messages() == 1


def test_no_sender_is_called_to_a_relay_that_is_left_alone(
    installation: Installation, operator: Operations
) -> None:
    """While the relay rests a retried delivery waits: recovery rings when it is time."""
    id_ = in_state(installation, "failed")
    installation.query(
        "INSERT INTO pipeline.relay (name, failure_count, retry_at)"
        " VALUES ('127.0.0.1:1025', 3, now() + interval '1 minute')"
    )

    assert operator.retry(id_).is_done

    assert installation.messages() == 0


def test_a_retried_delivery_takes_in_what_its_stack_was_given_meanwhile(
    installation: Installation, operator: Operations
) -> None:
    """The stack's newer delivery, which waits, joins it: one mail with everything."""
    old = in_state(installation, "failed")
    installation.notify("ann")
    installation.notify("ann")
    installation.stack()

    assert operator.retry(old).is_done

    rows = installation.query(
        "SELECT id::text, state, notification_count FROM pipeline.delivery ORDER BY created_at"
    )
    assert rows[0] == (old, "queued", 3)
    assert rows[1][1:] == ("skipped", 0)
    assert installation.query(
        "SELECT DISTINCT delivery_id::text FROM pipeline.email_notification_log"
    ) == [(old,)]


def test_a_delivery_that_gave_its_notifications_away_is_not_retried(
    installation: Installation, operator: Operations
) -> None:
    """There is nothing in it to send; the refusal says which delivery has it."""
    old = in_state(installation, "failed")
    installation.notify("ann")
    installation.stack()
    operator.retry(old)
    emptied = installation.value("SELECT id::text FROM pipeline.delivery WHERE state = 'skipped'")

    done = operator.retry(emptied)

    assert not done.is_done
    assert f"joined delivery {old}" in str(done.refusal)


def test_a_released_delivery_takes_nothing_in(
    installation: Installation, operator: Operations
) -> None:
    """It may have been received: the same Message-ID must not come with other content."""
    held = in_state(installation, "held", uncertain_count=1)
    installation.notify("ann")
    installation.stack()

    assert operator.release(held).is_done

    assert installation.query(
        "SELECT state, notification_count FROM pipeline.delivery ORDER BY created_at"
    ) == [("queued", 1), ("queued", 1)]


@pytest.mark.parametrize("verb", ["retry", "cancel"])
def test_whoever_comes_first_has_the_delivery(
    installation: Installation, operator: Operations, verb: str
) -> None:
    """An operator waits for a sender that is claiming, then sees it sending and leaves it alone."""
    id_ = in_state(installation, "queued" if verb == "cancel" else "deferred")
    results: list[Operation] = []
    with connect(installation.url) as sender, sender.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("UPDATE pipeline.delivery SET state = 'sending'")
        thread = threading.Thread(target=lambda: results.append(act(operator, verb, id_)))
        thread.start()
        wait_until(
            lambda: installation_waits(installation.url), message="the operator does not wait"
        )
        cursor.execute("COMMIT")
        thread.join(60)

    assert [done.is_done for done in results] == [False]
    assert "being sent at this moment" in str(results[0].refusal)


def installation_waits(url: str) -> bool:
    with connect(url) as looking, looking.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        row = cursor.fetchone()
        return row is not None and row[0] > 0


def test_a_late_word_of_a_sender_does_not_undo_a_cancellation(
    installation: Installation, operator: Operations
) -> None:
    """What an operator has cancelled stays so; the attempt keeps what its sender says."""
    installation.notify("ann")
    installation.stack()
    with transaction(installation.connection) as cursor:
        (claimed,) = delivery.claim(cursor, limit=1, lease=LEASE)
        assert delivery.begin(cursor, claimed, worker="a:1:2", lease=LEASE)
        assert delivery.mark_transmitting(cursor, claimed, lease=LEASE)
    installation.query("UPDATE pipeline.delivery SET lease_expires_at = '-infinity'")
    installation.recovery.declare_uncertain()
    assert operator.cancel(claimed.id).was == "uncertain"

    with transaction(installation.connection) as cursor:
        reply = Reply(250, "2.0.0", "Ok")
        late = Result(Outcome.SENT, Scope.MESSAGE, Stage.REPLY, reply)
        settlement = settlement_for(
            late, attempt_count=1, settings=installation.settings, relay_pause=LEASE
        )
        assert not delivery.settle(cursor, claimed, settlement)

    assert installation.delivery()["state"] == "cancelled"
    assert installation.attempts() == [(1, "reply", 250, "uncertain")]


def test_D04_a_held_mail_that_is_released_comes_with_the_same_message_id(
    installation: Installation, operator: Operations
) -> None:
    """After a reply that was lost, `hold` waits for an operator; released, it is sent once more."""
    with ScriptedServer([Rule("reply", do="close", times=1)]) as server:
        installation.set(smtp_url=server.url, on_uncertain="hold")
        installation.add_person("ann")
        installation.notify("ann")
        installation.stack()
        installation.send()
        installation.recovery.run()
        assert installation.send() == {}

        operator.release(str(installation.delivery()["id"]))
        # A lost reply is the relay's trouble too: it is left alone for a moment.
        installation.query("UPDATE pipeline.relay SET retry_at = now()")
        assert installation.send() == {"sent": 1}

        first, second = server.accepted
    assert first.message_id == second.message_id == installation.delivery()["message_id"]
    assert installation.delivery()["state"] == "sent"
    assert [attempt[3] for attempt in installation.attempts()] == ["uncertain", "sent"]


def test_S05_a_failed_mail_that_is_retried_is_sent(
    installation: Installation, operator: Operations
) -> None:
    """Refused for good, then mended and retried: the history tells both."""
    with ScriptedServer([Rule("rcpt", reply="550 5.1.1 No such user", times=1)]) as server:
        installation.set(smtp_url=server.url)
        installation.add_person("ann")
        installation.notify("ann")
        installation.stack()
        assert installation.send() == {"failed": 1}

        operator.retry(str(installation.delivery()["id"]))
        assert installation.send() == {"sent": 1}

    assert installation.attempts() == [(1, "rcpt", 550, "failed"), (2, "reply", 250, "sent")]


def test_deliveries_are_found_page_by_page(
    installation: Installation, operator: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a state, once each, longest there first, whatever changes on the way."""
    monkeypatch.setattr(operations, "PAGE", 7)
    installation.query(
        "INSERT INTO pipeline.delivery"
        " (receiver_id, entity_name, entity_identifier, state, message_id, updated_at)"
        " SELECT 'r' || n % 2, 'issue', n::text, CASE WHEN n <= 30 THEN 'failed' ELSE 'sent' END,"
        " '<x@y.example>', now() - n / 3 * interval '1 minute' FROM generate_series(1, 40) AS n"
    )

    found = []
    for id_ in operator.find(["failed"]):
        found.append(id_)
        installation.query(
            "UPDATE pipeline.delivery SET updated_at = clock_timestamp() WHERE id = %s", (id_,)
        )

    assert len(found) == len(set(found)) == 30
    assert len(list(operator.find(["sent"], limit=3))) == 3
    assert len(list(operator.find(["sent"], receiver="r1"))) == 5
    assert list(operator.find(["held"])) == []
