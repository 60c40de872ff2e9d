"""Recovery: whatever got stuck goes on, and whoever comes late is understood."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline import delivery
from pipeline.database import transaction
from pipeline.delivery import Claimed
from pipeline.replies import Outcome, Reply, Scope, Stage
from pipeline.settling import write_outcome
from pipeline.smtp import Result
from tests.support.installation import Installation
from tests.support.smtp_server import ScriptedServer
from tests.support.waiting import wait_until

LEASE = timedelta(seconds=30)


def claim(installation: Installation) -> Claimed:
    """A sender claims the only delivery and begins."""
    with transaction(installation.connection) as cursor:
        (claimed,) = delivery.claim(cursor, limit=1, lease=LEASE)
        assert delivery.begin(cursor, claimed, worker="test", lease=LEASE)
    return claimed


def mark(installation: Installation, claimed: Claimed) -> bool:
    with transaction(installation.connection) as cursor:
        return delivery.mark_transmitting(cursor, claimed, lease=LEASE)


def let_lease_run_out(installation: Installation) -> None:
    installation.query(
        "UPDATE pipeline.delivery SET lease_expires_at = now() - interval '1 second' "
        "WHERE lease_expires_at IS NOT NULL"
    )


def settle(installation: Installation, claimed: Claimed, result: Result) -> None:
    with transaction(installation.connection) as cursor:
        write_outcome(
            cursor, installation.settings, claimed, result, relay_pause=timedelta(seconds=1)
        )


def stack_one(installation: Installation) -> None:
    installation.add_person("ann")
    installation.notify("ann")
    installation.stack()


SENT = Result(Outcome.SENT, Scope.MESSAGE, Stage.REPLY, Reply(250, "2.0.0", "Ok"))
REFUSED = Result(Outcome.FAILED, Scope.MESSAGE, Stage.REPLY, Reply(554, "5.6.0", "No"))
LATER = Result(Outcome.DEFERRED, Scope.MESSAGE, Stage.RCPT, Reply(451, "4.7.1", "Later"))


def test_D09_a_sender_that_dies_before_the_dot_costs_one_attempt(
    installation: Installation,
) -> None:
    """The lease runs out, the delivery is queued again, and the history says why."""
    stack_one(installation)
    claim(installation)
    assert installation.recovery.give_up_silent() == 0, "its lease is not over"
    let_lease_run_out(installation)
    assert installation.recovery.give_up_silent() == 1
    delivery_ = installation.delivery()
    assert (delivery_["state"], delivery_["attempt_count"]) == ("queued", 1)
    assert installation.attempts() == [(1, "prepare", None, "abandoned")]


def test_D07_a_delivery_that_kills_its_senders_fails_at_the_cap(
    installation: Installation,
) -> None:
    """The attempt is counted when it begins, so that a poisonous one runs out of attempts."""
    installation.set(max_attempts=3)
    stack_one(installation)
    for _ in range(3):
        installation.query("UPDATE pipeline.delivery SET next_attempt_at = now()")
        claim(installation)
        let_lease_run_out(installation)
        installation.recovery.run()
    delivery_ = installation.delivery()
    assert (delivery_["state"], delivery_["attempt_count"]) == ("failed", 3)
    assert "3 attempts used up" in delivery_["reason"]


def test_D08_a_sender_that_was_taken_over_can_not_pass_the_marker(
    installation: Installation,
) -> None:
    """The token is checked by the statement that lets the dot be sent."""
    stack_one(installation)
    first = claim(installation)
    let_lease_run_out(installation)
    assert not mark(installation, first), "its lease is over"
    installation.recovery.give_up_silent()
    second = claim(installation)
    assert not mark(installation, first)
    settle(installation, first, LATER)
    assert installation.delivery()["state"] == "sending"
    assert mark(installation, second)
    assert [a[3] for a in installation.attempts()] == ["deferred", None]


@pytest.mark.parametrize("policy", ["resend", "hold"])
def test_a_sender_that_dies_after_the_marker_leaves_it_uncertain(
    installation: Installation, policy: str
) -> None:
    """Nobody knows whether the server has it: the policy decides."""
    installation.set(on_uncertain=policy)
    stack_one(installation)
    assert mark(installation, claim(installation))
    let_lease_run_out(installation)
    assert installation.recovery.give_up_silent() == 0
    assert installation.recovery.declare_uncertain() == 1
    assert installation.delivery()["state"] == "uncertain"
    assert installation.recovery.decide_uncertain() == 1
    assert installation.delivery()["state"] == {"resend": "queued", "hold": "held"}[policy]
    assert installation.attempts() == [(1, "dot", None, "uncertain")]


@pytest.mark.parametrize("policy", ["resend", "hold"])
@pytest.mark.parametrize("decided", [False, True])
def test_a_late_reply_settles_what_nobody_has_taken_on(
    installation: Installation, policy: str, decided: bool
) -> None:
    """A frozen sender that comes back with a 250 in time saves the second copy."""
    installation.set(on_uncertain=policy)
    stack_one(installation)
    claimed = claim(installation)
    mark(installation, claimed)
    let_lease_run_out(installation)
    installation.recovery.declare_uncertain()
    if decided:
        installation.recovery.decide_uncertain()
    settle(installation, claimed, SENT)
    assert installation.delivery()["state"] == "sent"
    assert installation.attempts() == [(1, "reply", 250, "sent")]
    assert (
        installation.value(
            "SELECT count(*) FROM pipeline.email_notification_log WHERE sent_at IS NOT NULL"
        )
        == 1
    )


def test_a_reply_that_is_too_late_explains_the_second_copy(installation: Installation) -> None:
    """The attempt stays uncertain, with the reply that came; the delivery is not moved on by it."""
    stack_one(installation)
    first = claim(installation)
    mark(installation, first)
    let_lease_run_out(installation)
    installation.recovery.declare_uncertain()
    installation.recovery.decide_uncertain()
    second = claim(installation)
    settle(installation, first, SENT)
    assert installation.delivery()["state"] == "sending"
    mark(installation, second)
    settle(installation, second, SENT)
    assert installation.delivery()["state"] == "sent"
    assert installation.attempts() == [
        (1, "reply", 250, "uncertain"),
        (2, "reply", 250, "sent"),
    ]


def test_a_late_refusal_is_written_as_what_it_was(installation: Installation) -> None:
    """It made no copy, so there is none to explain."""
    stack_one(installation)
    first = claim(installation)
    mark(installation, first)
    let_lease_run_out(installation)
    installation.recovery.declare_uncertain()
    installation.recovery.decide_uncertain()
    claim(installation)
    settle(installation, first, REFUSED)
    assert installation.delivery()["state"] == "sending"
    assert [attempt[3] for attempt in installation.attempts()] == ["failed", None]


@pytest.mark.parametrize("result", [SENT, REFUSED, LATER], ids=["sent", "failed", "deferred"])
def test_an_outcome_can_be_written_again(installation: Installation, result: Result) -> None:
    """A commit whose answer was lost is asked again, and nothing is counted twice."""
    stack_one(installation)
    claimed = claim(installation)
    mark(installation, claimed)
    settle(installation, claimed, result)
    before = installation.delivery(), installation.attempts()
    if result is LATER:
        installation.query("UPDATE pipeline.delivery SET next_attempt_at = now()")
        installation.recovery.requeue_deferred()
        before = installation.delivery(), installation.attempts()
    settle(installation, claimed, result)
    assert (installation.delivery(), installation.attempts()) == before


def test_P3_a_stack_that_got_a_second_delivery_meanwhile_is_one_again(
    installation: Installation,
) -> None:
    """What goes back to waiting takes in what its stack was given while it was on its way."""
    stack_one(installation)
    claimed = claim(installation)
    installation.notify("ann", field="name")
    installation.stack()
    assert installation.states() == {"sending": 1, "queued": 1}
    settle(installation, claimed, LATER)
    assert installation.states() == {"deferred": 1, "skipped": 1}
    assert installation.query(
        "SELECT count(*), min(delivery_id::text) FROM pipeline.email_notification_log "
        "GROUP BY delivery_id"
    ) == [(2, claimed.id)]
    assert installation.query(
        "SELECT notification_count FROM pipeline.delivery WHERE id = %s", (claimed.id,)
    ) == [(2,)]


def test_P3_the_same_when_its_sender_died(installation: Installation) -> None:
    """Recovery keeps a stack one email too."""
    stack_one(installation)
    claimed = claim(installation)
    installation.notify("ann", field="name")
    installation.stack()
    let_lease_run_out(installation)
    installation.recovery.give_up_silent()
    assert installation.states() == {"queued": 1, "skipped": 1}
    assert (
        installation.value(
            "SELECT notification_count FROM pipeline.delivery WHERE id = %s", (claimed.id,)
        )
        == 2
    )


def test_what_has_waited_for_too_long_fails_with_a_reason(installation: Installation) -> None:
    """The age limit ends what nobody could send, and keeps the last reason."""
    stack_one(installation)
    settle(installation, claim(installation), LATER)
    installation.query("UPDATE pipeline.delivery SET expires_at = now() - interval '1 s'")
    assert installation.recovery.expire() == 1
    delivery_ = installation.delivery()
    assert delivery_["state"] == "failed"
    assert delivery_["reason"].startswith("too old")
    assert "451 4.7.1 Later" in delivery_["reason"]


def test_too_old_is_not_claimed(installation: Installation) -> None:
    """A sender leaves to recovery what recovery owns."""
    stack_one(installation)
    installation.query("UPDATE pipeline.delivery SET expires_at = now() - interval '1 s'")
    with transaction(installation.connection) as cursor:
        assert delivery.claim(cursor, limit=10, lease=LEASE) == []


def test_P5_a_doorbell_that_was_lost_is_rung_again(installation: Installation) -> None:
    """Messages deleted from the queue lose no email."""
    stack_one(installation)
    installation.query("DELETE FROM dramatiq.queue")
    installation.recovery.ring()
    assert installation.messages() == 1
    installation.recovery.ring()
    assert installation.messages() == 1


def test_P5_a_doorbell_that_died_with_its_worker_is_rung_again(
    installation: Installation,
) -> None:
    """A consumed message that nobody has locked belongs to the dead."""
    stack_one(installation)
    installation.query("UPDATE dramatiq.queue SET state = 'consumed'")
    installation.recovery.ring()
    assert (installation.messages("queued"), installation.messages("done")) == (1, 1)


def test_a_doorbell_that_a_busy_worker_has_fetched_is_left_alone(
    installation: Installation,
) -> None:
    """Its consumer holds dramatiq-pg's lock on it: it will be answered."""
    from dramatiq.message import Message
    from dramatiq_pg.broker import message_lock

    stack_one(installation)
    encoded = installation.value("SELECT message::text FROM dramatiq.queue")
    other = Installation(installation.url)
    try:
        lock = message_lock(Message.decode(encoded.encode()))
        other.query(
            "UPDATE dramatiq.queue SET state = 'consumed' WHERE pg_try_advisory_lock(%s)", (lock,)
        )
        installation.recovery.ring()
        assert (installation.messages("queued"), installation.messages("consumed")) == (0, 1)
    finally:
        other.close()


def test_D23_a_doorbell_that_nobody_heard_is_notified_again(installation: Installation) -> None:
    """A worker whose LISTEN connection was replaced hears of it; no message is added."""
    stack_one(installation)
    installation.query("UPDATE pipeline.doorbell SET rung_at = now() - interval '1 minute'")
    listener = Installation(installation.url)
    try:
        listener.query('LISTEN "dramatiq.pipeline.enqueue"')
        installation.recovery.ring()

        def heard() -> bool:
            listener.connection.poll()
            return bool(listener.connection.notifies)

        wait_until(heard)
        assert installation.messages() == 1
    finally:
        listener.close()


def test_urgent_rows_written_by_plain_insert_call_a_stacker(installation: Installation) -> None:
    """Any client's INSERT is enough: recovery looks for urgent rows."""
    installation.notify("ann", urgent=True)
    installation.recovery.ring()
    assert installation.query("SELECT message->>'actor_name' FROM dramatiq.queue") == [
        ("pipeline.stack",)
    ]


def test_purging_keeps_to_what_is_finished_and_ours(installation: Installation) -> None:
    """Old finished deliveries go, with rows and history; a shop's own messages stay."""
    with ScriptedServer() as server:
        installation.set(smtp_url=server.url, keep=timedelta(minutes=1))
        stack_one(installation)
        installation.notify("bea")
        installation.send()
    installation.stack()
    installation.query("UPDATE pipeline.delivery SET updated_at = now() - interval '1 hour'")
    installation.query("UPDATE dramatiq.queue SET state = 'done', mtime = now() - interval '2 h'")
    installation.query("UPDATE pipeline.doorbell SET over_at = now() - interval '2 hours'")
    installation.query(
        "INSERT INTO dramatiq.queue (message_id, queue_name, state, mtime, message) "
        "VALUES (gen_random_uuid(), 'shop', 'done', now() - interval '9 days', '{}')"
    )
    assert installation.recovery.purge() == 1
    assert installation.states() == {"queued": 1}
    assert installation.query("SELECT receiver_id FROM pipeline.email_notification_log") == [
        ("bea",)
    ]
    assert installation.query("SELECT queue_name FROM dramatiq.queue") == [("shop",)]


def owner_of(state: str, lease: int | None, next_attempt: int, age_limit: int) -> str | None:
    """Who moves such a delivery now; the times in seconds from now."""
    if state in ("queued", "deferred") and age_limit < 0:
        return "expire"
    if state == "queued":
        return "claim" if next_attempt < 0 else None
    if state == "deferred":
        return "requeue_deferred" if next_attempt < 0 else None
    if state == "sending":
        return "give_up_silent" if lease is None or lease < 0 else None
    if state == "transmitting":
        return "declare_uncertain" if lease is None or lease < 0 else None
    return "decide_uncertain" if state == "uncertain" else None


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from(
                [
                    *("queued", "sending", "transmitting", "deferred", "uncertain", "held"),
                    *("sent", "failed", "suppressed", "skipped", "cancelled"),
                ]
            ),
            st.sampled_from([None, -60, 60]),  # lease
            st.sampled_from([-60, 60]),  # next attempt
            st.sampled_from([-60, 60]),  # age limit
            st.integers(0, 12),  # attempts
            st.integers(0, 2),  # uncertain
        ),
        min_size=1,
        max_size=12,
    )
)
def test_every_state_that_is_not_final_is_owned_by_exactly_one_query(
    installation: Installation, rows: list[tuple[str, int | None, int, int, int, int]]
) -> None:
    """Each row that is due is moved by exactly one of recovery's queries or the claim, each that is
    not due by none, and final or held ones by none at all."""
    for owner in (
        *("claim", "give_up_silent", "declare_uncertain", "decide_uncertain"),
        *("requeue_deferred", "expire"),
    ):
        installation.query("TRUNCATE pipeline.delivery, pipeline.delivery_attempt")
        expected = set()
        for number, (state, lease, next_, age, attempts, uncertain) in enumerate(rows):
            installation.query(
                "INSERT INTO pipeline.delivery (receiver_id, entity_name, entity_identifier, "
                "message_id, state, lease_expires_at, next_attempt_at, expires_at, attempt_count, "
                "uncertain_count, attempt_token) VALUES (%s, 'issue', '1', '<x@y>', %s, "
                "now() + %s * interval '1 s', now() + %s * interval '1 s', "
                "now() + %s * interval '1 s', %s, %s, gen_random_uuid())",
                (str(number), state, lease, next_, age, attempts, uncertain),
            )
            if owner_of(state, lease, next_, age) == owner:
                expected.add(str(number))
        columns = "receiver_id, state, lease_expires_at, attempt_token"
        before = dict.fromkeys(installation.query(f"SELECT {columns} FROM pipeline.delivery"))
        if owner == "claim":
            with transaction(installation.connection) as cursor:
                delivery.claim(cursor, limit=100, lease=LEASE)
        else:
            getattr(installation.recovery, owner)()
        after = installation.query(f"SELECT {columns} FROM pipeline.delivery")
        assert {row[0] for row in after if row not in before} == expected, owner


def test_recovery_may_run_many_times_at_once(installation: Installation) -> None:
    """Several schedulers recover the same deliveries without harm."""
    installation.notify_many(30)
    installation.stack()
    with transaction(installation.connection) as cursor:
        for claimed in delivery.claim(cursor, limit=30, lease=LEASE):
            delivery.begin(cursor, claimed, worker="test", lease=LEASE)
    let_lease_run_out(installation)
    counts: list[int] = []
    barrier = threading.Barrier(4)

    def recover() -> None:
        other = Installation(installation.url)
        try:
            barrier.wait(timeout=30)
            counts.append(other.recovery.give_up_silent())
            other.recovery.run()
        finally:
            other.close()

    threads = [threading.Thread(target=recover) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert sum(counts) == 30
    assert installation.states() == {"queued": 30}
    assert [a[3] for a in installation.attempts()] == ["abandoned"] * 30


def test_ticks_are_one_for_all_schedulers(installation: Installation) -> None:
    """T01: four schedulers make one tick and one message."""
    from pipeline.scheduling import Schedule

    installation.set(stack_every=timedelta(hours=1))
    for _ in range(4):
        Schedule(installation.url, installation.settings, installation.doorbells).tick(
            installation.connection
        )
    assert installation.value("SELECT count(*) FROM pipeline.tick") == 1
    assert installation.messages() == 1
