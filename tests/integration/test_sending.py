"""Sending: every ending of an attempt, against a server that speaks real SMTP."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta

import pytest

from pipeline.database import connect, query, transaction
from tests.support.installation import Installation
from tests.support.smtp_server import Rule, ScriptedServer
from tests.support.waiting import wait_until


def stack_one(installation: Installation, server: ScriptedServer) -> None:
    """One delivery, waiting for this server."""
    installation.set(smtp_url=server.url)
    installation.add_person("ann")
    installation.notify("ann")
    installation.stack()


def send_when_due(installation: Installation, state: str) -> None:
    """Recover and send, as a scheduler and a worker do, until the only delivery is in a state."""

    def arrived() -> bool:
        installation.recovery.run()
        installation.send()
        return set(installation.states()) == {state}

    wait_until(arrived, timeout=20, message=lambda: str(installation.delivery()))


def test_a_delivery_is_sent_and_written_down(installation: Installation) -> None:
    """The server has the mail; delivery, attempt and rows say so."""
    with ScriptedServer() as server:
        stack_one(installation, server)
        assert installation.send() == {"sent": 1}
        (accepted,) = server.accepted
    delivery = installation.delivery()
    assert (delivery["state"], delivery["attempt_count"]) == ("sent", 1)
    assert delivery["sent_at"] is not None
    assert delivery["lease_expires_at"] is None
    assert accepted.message_id == delivery["message_id"]
    assert accepted.recipients == ["ann@people.example"]
    assert installation.attempts() == [(1, "reply", 250, "sent")]
    assert installation.query(
        "SELECT sent_at = %s FROM pipeline.email_notification_log", (delivery["sent_at"],)
    ) == [(True,)]


def test_D02_one_failure_leaves_the_rows_of_others_alone(installation: Installation) -> None:
    """`sent_at` is set on exactly the rows of the delivery that was accepted."""
    with ScriptedServer([Rule("reply", reply="554 5.6.0 No", times=1)]) as server:
        stack_one(installation, server)
        installation.notify("ann", "18")
        installation.stack()
        installation.send()
    assert installation.states() == {"failed": 1, "sent": 1}
    assert installation.value(
        "SELECT bool_and((n.sent_at IS NOT NULL) = (d.state = 'sent')) "
        "FROM pipeline.email_notification_log n JOIN pipeline.delivery d ON d.id = n.delivery_id"
    )


@pytest.mark.parametrize(
    ("rule", "state", "attempt", "attempt_count"),
    [
        (Rule("rcpt", reply="550 5.1.1 No such user"), "failed", ("rcpt", 550, "failed"), 1),
        (Rule("reply", reply="552 5.2.2 Too big"), "failed", ("reply", 552, "failed"), 1),
        (Rule("reply", reply="554 5.6.0 Refused"), "failed", ("reply", 554, "failed"), 1),
        (Rule("data", reply="554 5.5.1 No"), "failed", ("data", 554, "failed"), 1),
        (Rule("rcpt", reply="451 4.7.1 Later"), "deferred", ("rcpt", 451, "deferred"), 1),
        (Rule("reply", reply="452 4.3.1 Full"), "deferred", ("reply", 452, "deferred"), 1),
        (Rule("rcpt", do="close"), "deferred", ("rcpt", None, "deferred"), 1),
        (Rule("connect", reply="421 4.3.2 Busy"), "deferred", ("connect", 421, "deferred"), 0),
        (Rule("connect", reply="554 Go away"), "deferred", ("connect", 554, "deferred"), 0),
        (Rule("mail", do="close"), "deferred", ("mail", None, "deferred"), 0),
        (Rule("reply", do="close"), "uncertain", ("reply", None, "uncertain"), 1),
        (Rule("dot", do="close"), "uncertain", ("reply", None, "uncertain"), 1),
    ],
    ids=lambda value: value.stage if isinstance(value, Rule) else None,
)
def test_S03_each_ending_leads_to_its_own_state(
    installation: Installation,
    rule: Rule,
    state: str,
    attempt: tuple[str, int | None, str],
    attempt_count: int,
) -> None:
    """Stage and code decide; the relay's own trouble uses up no attempt."""
    with ScriptedServer([rule]) as server:
        stack_one(installation, server)
        installation.send()
    delivery = installation.delivery()
    assert delivery["state"] == state
    assert delivery["attempt_count"] == attempt_count
    assert delivery["reason"]
    assert installation.attempts() == [(1, *attempt)]


def test_S05_greylisted_mail_is_tried_again_and_arrives_once(installation: Installation) -> None:
    """451 at first, 250 later: one mail, two attempts."""
    with ScriptedServer([Rule("rcpt", reply="451 4.7.1 Greylisted", times=1)]) as server:
        stack_one(installation, server)
        send_when_due(installation, "sent")
        assert server.accepted_count == 1
    assert [attempt[3] for attempt in installation.attempts()] == ["deferred", "sent"]


def test_S05_attempts_are_used_up(installation: Installation) -> None:
    """A delivery that is put off for ever fails at the cap, and says why."""
    installation.set(max_attempts=3, retry_base=timedelta(milliseconds=1))
    with ScriptedServer([Rule("rcpt", reply="450 4.2.1 Mailbox busy")]) as server:
        stack_one(installation, server)
        send_when_due(installation, "failed")
    delivery = installation.delivery()
    assert delivery["attempt_count"] == 3
    assert "3 attempts used up" in delivery["reason"]
    assert "450 4.2.1 Mailbox busy" in delivery["reason"]


def test_D03_a_relay_that_refuses_connections_costs_no_attempt(
    installation: Installation,
) -> None:
    """The relay is down, then up: the delivery is visible meanwhile, and arrives once."""
    with ScriptedServer() as server:
        stack_one(installation, server)
        server.go_down()
        for _ in range(3):
            installation.send()
            installation.query("UPDATE pipeline.relay SET retry_at = now()")
            installation.query("UPDATE pipeline.delivery SET next_attempt_at = now()")
            installation.recovery.requeue_deferred()
        assert installation.delivery()["attempt_count"] == 0
        assert installation.value("SELECT failure_count FROM pipeline.relay") == 3
        server.come_up()
        send_when_due(installation, "sent")
        assert server.accepted_count == 1
    assert installation.value("SELECT failure_count FROM pipeline.relay") == 0


def test_P6_a_relay_in_trouble_is_left_alone_by_everybody(installation: Installation) -> None:
    """One delivery finds out; the others stay queued, and no sender is called for them."""
    installation.set(relay_pause=timedelta(seconds=30), relay_pause_cap=timedelta(seconds=30))
    with ScriptedServer(
        [Rule("auth", reply="535 5.7.8 Bad password")], credentials=("u", "p")
    ) as server:
        installation.set(smtp_url=server.url)
        installation.notify_many(5)
        installation.stack()
        installation.query("UPDATE dramatiq.queue SET state = 'done'")
        assert installation.send() == {"deferred": 1}
        assert installation.send() == {}
        installation.recovery.run()
    assert installation.states() == {"deferred": 1, "queued": 4}
    assert installation.messages() == 0
    assert installation.query("SELECT smtp_code, reason FROM pipeline.relay")[0][0] == 535


@pytest.mark.parametrize("policy", ["resend", "hold"])
def test_D04_reply_lost_after_the_dot(installation: Installation, policy: str) -> None:
    """The policy decides: the same Message-ID once more, or an operator; never silently."""
    installation.set(on_uncertain=policy)
    with ScriptedServer([Rule("reply", do="close", times=1)]) as server:
        stack_one(installation, server)
        installation.send()
        assert installation.delivery()["state"] == "uncertain"
        send_when_due(installation, "sent" if policy == "resend" else "held")
        ids = [accepted.message_id for accepted in server.accepted]
    delivery = installation.delivery()
    assert ids == [delivery["message_id"]] * (2 if policy == "resend" else 1)
    outcomes = [attempt[3] for attempt in installation.attempts()]
    assert outcomes == (["uncertain", "sent"] if policy == "resend" else ["uncertain"])


def test_D04_a_relay_that_loses_every_reply_is_given_one_mail_at_a_time(
    installation: Installation,
) -> None:
    """It would make the whole backlog uncertain; the rest waits until it answers again."""
    with ScriptedServer([Rule("reply", do="close")]) as server:
        pause = timedelta(minutes=1)
        installation.set(smtp_url=server.url, relay_pause=pause, relay_pause_cap=pause)
        installation.notify_many(30)
        installation.stack()
        assert installation.send() == {"uncertain": 1}
        assert installation.send() == {}, "it is left alone for a while"
        installation.query("UPDATE pipeline.relay SET retry_at = now()")
        assert installation.send() == {"uncertain": 1}
        assert installation.value("SELECT failure_count FROM pipeline.relay") == 2
        server.clear()
        installation.query("UPDATE pipeline.relay SET retry_at = now()")
        assert installation.send() == {"sent": 28}
    assert installation.states() == {"uncertain": 2, "sent": 28}


def test_D14_one_bad_address_fails_alone(installation: Installation) -> None:
    """The others of its chunk are sent."""
    with ScriptedServer() as server:
        installation.set(smtp_url=server.url)
        for name in ("ann", "cid"):
            installation.add_person(name)
        installation.add_person("bea", email="not-an-address")
        for name in ("ann", "bea", "cid"):
            installation.notify(name)
        installation.stack()
        assert installation.send() == {"sent": 2, "failed": 1}
    assert "not-an-address" in installation.value(
        "SELECT reason FROM pipeline.delivery WHERE state = 'failed'"
    )


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (None, "no such recipient"),
        ({"active": False}, "not active"),
        ({"email": None}, "no address"),
        ({"email": " "}, "no address"),
    ],
)
def test_C01_who_can_not_be_told_is_suppressed_with_a_reason(
    installation: Installation, columns: dict[str, object] | None, reason: str
) -> None:
    """Recipients are read when the mail is made, not when the row was written."""
    with ScriptedServer() as server:
        installation.set(smtp_url=server.url)
        if columns is not None:
            installation.add_person("ann", **columns)
        installation.notify("ann")
        installation.stack()
        assert installation.send() == {"suppressed": 1}
        assert server.accepted_count == 0
    delivery = installation.delivery()
    assert delivery["state"] == "suppressed"
    assert reason in delivery["reason"]
    assert delivery["attempt_count"] == 0


def test_Q02_nothing_left_to_say_is_skipped_with_a_reason(installation: Installation) -> None:
    """B01: what went and came back is not told."""
    with ScriptedServer() as server:
        installation.set(smtp_url=server.url)
        installation.add_person("ann")
        installation.notify("ann", old="low", new="high")
        installation.notify("ann", old="high", new="low")
        installation.stack()
        assert installation.send() == {"skipped": 1}
        assert server.accepted_count == 0
    assert "nothing left to say" in installation.delivery()["reason"]


def test_D13_rows_that_can_not_be_read_fail_alone(installation: Installation) -> None:
    """Odd rows are shown plainly, and never stop the others."""
    with ScriptedServer() as server:
        installation.set(smtp_url=server.url)
        installation.add_person("ann")
        for entity, data in enumerate(
            (
                [],
                {},
                "text",
                7,
                {"issue_activity": None},
                {"issue": [1], "issue_activity": {"field": {}}},
            )
        ):
            installation.notify("ann", str(entity), data=data)
        installation.query(
            "INSERT INTO pipeline.email_notification_log "
            "(receiver_id, entity_name, entity_identifier, data) "
            "VALUES ('ann', 'issue', 'deep', (repeat('[', 3000) || repeat(']', 3000))::jsonb)"
        )
        installation.notify("ann", "plain")
        installation.stack()
        installation.send()
    assert set(installation.states()) <= {"sent", "skipped"}
    assert (
        installation.value("SELECT state FROM pipeline.delivery WHERE entity_identifier = 'plain'")
        == "sent"
    )


def test_S09_one_login_serves_many_mails(installation: Installation) -> None:
    """A session is kept as long as there is something to send."""
    with ScriptedServer(credentials=("user", "secret")) as server:
        installation.set(smtp_url=server.url)
        installation.notify_many(50)
        installation.stack()
        assert installation.send() == {"sent": 50}
        assert (server.login_count, server.accepted_count) == (1, 50)


def test_D16_eight_senders_send_one_delivery_once(installation: Installation) -> None:
    """A delivery is claimed by one of them."""
    with ScriptedServer() as server:
        stack_one(installation, server)
        installation.set(senders=8)
        barrier = threading.Barrier(8)

        def send(_: int) -> dict[str, int]:
            barrier.wait(timeout=30)
            return installation.send()

        with ThreadPoolExecutor(8) as pool:
            outcomes = list(pool.map(send, range(8)))
        assert server.accepted_count == 1
    assert max(outcomes, key=len) == {"sent": 1}
    assert installation.attempts() == [(1, "reply", 250, "sent")]


def test_there_are_never_more_connections_than_senders(installation: Installation) -> None:
    """The cap on senders is the cap on connections to the relay, whoever rings."""
    installation.set(senders=2)
    with ScriptedServer([Rule("rcpt", delay=0.02)], max_connections=2) as server:
        installation.set(smtp_url=server.url)
        installation.notify_many(60)
        installation.stack()
        with ThreadPoolExecutor(6) as pool:
            outcomes = list(pool.map(lambda _: installation.send(), range(6)))
        assert sum(outcome.get("sent", 0) for outcome in outcomes) == 60
        assert sum(bool(outcome) for outcome in outcomes) <= 2
    assert installation.value("SELECT count(*) FROM pipeline.delivery_attempt") == 60


def test_S01_a_relay_that_is_busy_for_everybody_is_tried_again_soon(
    installation: Installation,
) -> None:
    """421 to all at once: each sees that others have their places, and one of them stays ready."""
    installation.set(senders=3)
    busy = Rule("connect", hold="gate", reply="421 4.3.2 Too busy", times=3)
    with ScriptedServer([busy]) as server:
        installation.set(smtp_url=server.url)
        installation.notify_many(100)
        installation.stack()
        with ThreadPoolExecutor(3) as pool:
            senders = [pool.submit(installation.send) for _ in range(3)]
            server.wait_until_held("gate", count=3)
            server.release("gate")
            assert [sender.result() for sender in senders] == [{"deferred": 1}] * 3
        resting = "SELECT count(*) FROM pipeline.sender WHERE lease_expires_at > now()"
        assert installation.value(resting) == 2
        assert installation.send()["sent"] >= 97
    assert installation.states().get("queued", 0) == 0


def test_S01_a_sender_that_leaves_sees_the_one_that_left_just_before(
    installation: Installation,
) -> None:
    """Two leave at once, both sent away: the second one waits for the first, and does not rest."""
    installation.set(senders=2)
    names = {"worker": "other", "senders": 2, "lease": timedelta(minutes=1)}
    with (
        closing(connect(installation.url)) as other,
        ScriptedServer([Rule("connect", hold="gate", reply="421 4.3.2 Busy")]) as server,
    ):
        stack_one(installation, server)
        with transaction(other) as cursor:
            cursor.execute(query("sender_slots"), {"senders": 2})
            cursor.execute(query("sender_enter"), names)
            slot, token = cursor.fetchone() or (0, "")
        sender = threading.Thread(target=installation.send)
        sender.start()
        server.wait_until_held("gate")
        with transaction(other) as cursor:
            cursor.execute(query("doorbells_lock"))
            cursor.execute(
                query("sender_leave"), {"slot": slot, "token": token, "rest": timedelta(minutes=1)}
            )
            server.release("gate")
            waits = (
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted "
                "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            )
            wait_until(lambda: installation.value(waits) == 1)
        sender.join(60)
    places = installation.query(
        "SELECT lease_expires_at > now() FROM pipeline.sender ORDER BY slot"
    )
    assert sorted(rests for (rests,) in places) == [False, True]


def test_S01_a_relay_with_enough_connections_is_not_in_trouble(
    installation: Installation,
) -> None:
    """421 to one connection too many: that sender's place rests, the others go on."""
    installation.set(senders=3)
    with ScriptedServer([Rule("rcpt", delay=0.02)], max_connections=1) as server:
        installation.set(smtp_url=server.url)
        installation.notify_many(100)
        installation.stack()
        with ThreadPoolExecutor(3) as pool:
            outcomes = list(pool.map(lambda _: installation.send(), range(3)))
    assert sum(outcome.get("deferred", 0) for outcome in outcomes) == 2
    assert installation.value("SELECT count(*) FROM pipeline.relay WHERE failure_count > 0") == 0
    assert (
        installation.value(
            "SELECT count(*) FROM pipeline.sender WHERE token IS NULL AND lease_expires_at > now()"
        )
        == 2
    )


def test_D22_no_transaction_is_open_while_the_relay_is_talked_to(
    installation: Installation,
) -> None:
    """A relay that stalls holds no row, no lock and no snapshot in the database."""
    with ScriptedServer([Rule("rcpt", hold="rcpt"), Rule("reply", hold="reply")]) as server:
        stack_one(installation, server)
        sender = threading.Thread(target=installation.send)
        sender.start()
        for stage in ("rcpt", "reply"):
            server.wait_until_held(stage)
            assert (
                installation.query(
                    "SELECT state, query FROM pg_stat_activity WHERE datname = current_database() "
                    "AND application_name = 'pipeline sender' AND state <> 'idle'"
                )
                == []
            )
            server.release(stage)
        sender.join(timeout=60)
    assert installation.states() == {"sent": 1}


def test_D20_a_lease_is_kept_while_its_sender_is_alive(installation: Installation) -> None:
    """A server that takes longer than the lease to answer makes nothing uncertain."""
    installation.set(lease=timedelta(seconds=2))
    with ScriptedServer([Rule("reply", hold="reply")]) as server:
        stack_one(installation, server)
        sender = threading.Thread(target=installation.send)
        sender.start()
        server.wait_until_held("reply")
        first = installation.delivery()["lease_expires_at"]

        def renewed_past_the_lease() -> bool:
            installation.recovery.run()
            later = installation.delivery()["lease_expires_at"]
            return later is not None and later - first > timedelta(seconds=3)

        wait_until(renewed_past_the_lease)
        server.release("reply")
        sender.join(timeout=60)
        assert server.accepted_count == 1
    assert installation.states() == {"sent": 1}
    assert [attempt[3] for attempt in installation.attempts()] == ["sent"]


def test_S04_a_black_hole_ends_at_the_timeout(installation: Installation) -> None:
    """A server that never says a word is the relay's trouble, within the connect timeout."""
    installation.set(connect_timeout=timedelta(milliseconds=300))
    with ScriptedServer([Rule("connect", do="silence")]) as server:
        stack_one(installation, server)
        installation.send()
    assert installation.attempts() == [(1, "connect", None, "deferred")]
    assert installation.delivery()["attempt_count"] == 0


def test_S02_a_relay_without_an_address_is_its_own_trouble(installation: Installation) -> None:
    """A name that does not resolve is not the delivery's fault."""
    installation.set(smtp_url="smtp://relay.invalid:25")
    installation.add_person("ann")
    installation.notify("ann")
    installation.stack()
    installation.send()
    delivery = installation.delivery()
    assert (delivery["state"], delivery["attempt_count"]) == ("deferred", 0)
    assert "relay.invalid" in delivery["reason"]


def test_B02_an_enormous_stack_makes_a_mail_of_bounded_size(installation: Installation) -> None:
    """10,000 rows: fifty are shown, the rest is counted, all of them are sent."""
    with ScriptedServer() as server:
        installation.set(smtp_url=server.url)
        installation.add_person("p1")
        installation.notify_many(1, rows=10_000)
        installation.stack()
        assert installation.send() == {"sent": 1}
        (accepted,) = server.accepted
    assert len(accepted.content) < 150_000
    assert b"9,950 more" in accepted.content
    assert (
        installation.value(
            "SELECT count(*) FROM pipeline.email_notification_log WHERE sent_at IS NOT NULL"
        )
        == 10_000
    )


def test_a_stopped_sender_puts_back_what_it_has_not_begun(installation: Installation) -> None:
    """SIGTERM: the mail in hand is finished, the rest of the chunk waits for somebody else."""
    stopping = threading.Event()
    with ScriptedServer([Rule("reply", hold="reply", times=1)]) as server:
        installation.set(smtp_url=server.url)
        installation.notify_many(5)
        installation.stack()
        installation.query("UPDATE dramatiq.queue SET state = 'done'")
        sender = threading.Thread(target=lambda: installation.send(should_stop=stopping.is_set))
        sender.start()
        server.wait_until_held("reply")
        stopping.set()
        server.release("reply")
        sender.join(timeout=60)
        assert server.accepted_count == 1
    assert installation.states() == {"sent": 1, "queued": 4}
    assert installation.messages() == 1, "somebody else is called for the rest"


def test_a_sender_whose_slice_is_over_rings_for_the_next(installation: Installation) -> None:
    """Long backlogs are sent in turns; the doorbell goes on from one to the next."""
    installation.set(slice=timedelta(milliseconds=1), chunk=2)
    with ScriptedServer([Rule("rcpt", delay=0.01)]) as server:
        installation.set(smtp_url=server.url)
        installation.notify_many(5)
        installation.stack()
        installation.query("UPDATE dramatiq.queue SET state = 'done'")
        installation.send()
    assert installation.states()["queued"] > 0
    assert installation.messages() >= 1
