"""Guards that no other test looks at one by one: `guards` breaks them to see these tests fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta

import psycopg2
import pytest

from pipeline import attempting, delivery
from pipeline.database import connect, query, transaction
from pipeline.delivery import Claimed
from pipeline.replies import Outcome, Reply, Scope, Stage
from pipeline.settling import write_outcome
from pipeline.smtp import Result
from tests.support.installation import Installation
from tests.support.smtp_server import Rule, ScriptedServer
from tests.support.waiting import wait_until

LEASE = timedelta(seconds=30)
LATER = Result(Outcome.DEFERRED, Scope.MESSAGE, Stage.RCPT, Reply(451, "4.7.1", "Later"))
UNKNOWN = Result(Outcome.UNCERTAIN, Scope.MESSAGE, Stage.REPLY)


@pytest.fixture
def other(installation: Installation) -> Iterator[Installation]:
    """Another process of the same installation."""
    opened = Installation(installation.url)
    yield opened
    opened.close()


def stack_one(installation: Installation) -> None:
    installation.add_person("ann")
    installation.notify("ann")
    installation.stack()


def claim(installation: Installation, *, begin: bool = True) -> Claimed:
    with transaction(installation.connection) as cursor:
        (claimed,) = delivery.claim(cursor, limit=1, lease=LEASE)
        if begin:
            assert delivery.begin(cursor, claimed, worker="test", lease=LEASE)
    return claimed


def settle(installation: Installation, claimed: Claimed, result: Result) -> None:
    with transaction(installation.connection) as cursor:
        write_outcome(
            cursor, installation.settings, claimed, result, relay_pause=timedelta(seconds=1)
        )


def let_lease_run_out(installation: Installation) -> None:
    installation.query("UPDATE pipeline.delivery SET lease_expires_at = now() - interval '1 s'")


def taken_over(installation: Installation) -> tuple[Claimed, Claimed]:
    """A sender that fell silent, and the one that has its delivery now."""
    stack_one(installation)
    first = claim(installation)
    let_lease_run_out(installation)
    assert installation.recovery.give_up_silent() == 1
    return first, claim(installation)


def rows_by_delivery(installation: Installation) -> dict[str, int]:
    return dict(
        installation.query(
            "SELECT delivery_id::text, count(*) FROM pipeline.email_notification_log GROUP BY 1"
        )
    )


def wait_for_lock(installation: Installation, waiting: Installation) -> None:
    """Until the other one's statement waits for a lock."""
    with closing(connect(installation.url)) as third, third.cursor() as cursor:

        def waits() -> bool:
            cursor.execute(
                "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s",
                (waiting.connection.info.backend_pid,),
            )
            row = cursor.fetchone()
            return row is not None and bool(row[0])

        wait_until(waits, message="a lock to be waited for")


def in_background(work: Callable[[], int]) -> Future[int]:
    pool = ThreadPoolExecutor(1)
    future = pool.submit(work)
    pool.shutdown(wait=False)
    return future


def test_two_claims_at_once_share_nothing_and_wait_for_nothing(
    installation: Installation, other: Installation
) -> None:
    """What another claim has locked is passed over, in the middle of its transaction too."""
    installation.notify_many(3)
    installation.stack()
    with transaction(installation.connection) as cursor:
        mine = delivery.claim(cursor, limit=2, lease=LEASE)
        with transaction(other.connection) as others:
            others.execute("SET LOCAL lock_timeout = '200ms'")
            theirs = delivery.claim(others, limit=3, lease=LEASE)
    assert (len(mine), len(theirs)) == (2, 1)
    assert not {each.id for each in mine} & {each.id for each in theirs}


def test_a_claim_looks_again_at_what_it_waited_to_lock(
    installation: Installation, other: Installation
) -> None:
    """The state is that of the row as it is now, not as the snapshot has it."""
    stack_one(installation)
    with transaction(other.connection) as cursor:
        cursor.execute("SELECT count(*) FROM pipeline.delivery WHERE state = 'queued'")
        claimed = claim(installation)
        assert delivery.claim(cursor, limit=1, lease=LEASE) == []
    assert installation.delivery()["attempt_token"] == claimed.token


def test_a_sender_that_was_taken_over_does_not_extend_anothers_lease(
    installation: Installation,
) -> None:
    """Its keeper may live on: it renews what has its own token."""
    first, _ = taken_over(installation)
    before = installation.delivery()["lease_expires_at"]
    with transaction(installation.connection) as cursor:
        cursor.execute(
            query("delivery_extend"),
            {"ids": [first.id], "tokens": [first.token], "lease": timedelta(hours=1)},
        )
    assert installation.delivery()["lease_expires_at"] == before


def test_a_sender_that_was_taken_over_can_not_begin(installation: Installation) -> None:
    """What it claimed and did not begin in time is another's."""
    stack_one(installation)
    first = claim(installation, begin=False)
    let_lease_run_out(installation)
    installation.recovery.give_up_silent()
    claim(installation)
    with transaction(installation.connection) as cursor:
        assert not delivery.begin(cursor, first, worker="late", lease=LEASE)
    assert installation.delivery()["attempt_count"] == 1


def test_a_sender_that_was_taken_over_puts_nothing_back(installation: Installation) -> None:
    """Stopped late, it lets go of what is its own."""
    stack_one(installation)
    first = claim(installation, begin=False)
    let_lease_run_out(installation)
    installation.recovery.give_up_silent()
    claim(installation)
    delivery.release(installation.connection, first)
    assert installation.states() == {"sending": 1}


def test_what_has_begun_is_not_put_back(installation: Installation) -> None:
    """Its outcome will be written, or recovery gives it up with its attempt."""
    stack_one(installation)
    delivery.release(installation.connection, claim(installation))
    assert installation.states() == {"sending": 1}


def test_a_sender_that_was_taken_over_ends_nothing(installation: Installation) -> None:
    """A recipient that it found missing is looked for by the one who has the delivery."""
    first, _ = taken_over(installation)
    with transaction(installation.connection) as cursor:
        cursor.execute(*delivery.closing(first, state="suppressed", reason="gone"))
    assert installation.states() == {"sending": 1}


def test_new_rows_are_not_moved_into_a_mail_that_another_is_sending(
    installation: Installation,
) -> None:
    """A late deferral takes nothing in: those rows would be marked sent and were in no mail."""
    first, second = taken_over(installation)
    installation.notify("ann", field="name")
    installation.stack()
    settle(installation, first, LATER)
    assert installation.states() == {"sending": 1, "queued": 1}
    assert rows_by_delivery(installation)[second.id] == 1


def test_a_sender_that_spoke_again_is_not_given_up(
    installation: Installation, other: Installation
) -> None:
    """Recovery's list is old when it acts: it looks at the lease again, and takes nothing in."""
    stack_one(installation)
    claimed = claim(installation)
    let_lease_run_out(installation)
    with transaction(other.connection) as cursor:
        (silent,) = delivery.silent(cursor, limit=10)
    with transaction(installation.connection) as cursor:
        cursor.execute(
            query("delivery_extend"),
            {"ids": [claimed.id], "tokens": [claimed.token], "lease": LEASE},
        )
    installation.notify("ann", field="name")
    installation.stack()
    assert not delivery.give_up(
        other.connection, silent, max_attempts=10, delay=timedelta(seconds=0)
    )
    assert installation.states() == {"sending": 1, "queued": 1}
    assert rows_by_delivery(installation)[claimed.id] == 1


def test_what_may_have_been_received_takes_nothing_in(installation: Installation) -> None:
    """The same Message-ID must not come with other content."""
    stack_one(installation)
    settle(installation, claim(installation), UNKNOWN)
    installation.recovery.decide_uncertain()
    second = claim(installation)
    installation.notify("ann", field="name")
    installation.stack()
    settle(installation, second, LATER)
    assert installation.states() == {"deferred": 1, "queued": 1}
    assert rows_by_delivery(installation)[second.id] == 1


def test_a_stack_has_one_delivery_that_can_be_joined(installation: Installation) -> None:
    """Whoever makes a second one wait is refused, whatever its snapshot says."""
    stack_one(installation)
    with pytest.raises(psycopg2.errors.UniqueViolation):
        installation.query(
            "INSERT INTO pipeline.delivery "
            "(receiver_id, entity_name, entity_identifier, message_id) "
            "VALUES ('ann', 'issue', '17', '<x@y>')"
        )


def test_a_pass_leaves_rows_that_were_claimed_while_it_waited(
    installation: Installation, other: Installation
) -> None:
    """A row is claimed once, although two snapshots show it waiting."""
    installation.notify("ann")
    with transaction(installation.connection) as cursor:
        cursor.execute(
            "UPDATE pipeline.email_notification_log "
            "SET processed_at = now(), delivery_id = gen_random_uuid()"
        )
        late = in_background(lambda: other.stack().claimed_count)
        wait_for_lock(installation, other)
    assert late.result(timeout=10) == 0
    assert installation.states() == {}


def test_two_that_ring_at_once_ring_one_after_the_other(
    installation: Installation, other: Installation
) -> None:
    """The second sees what the first has rung for: the cap holds."""
    with transaction(installation.connection) as cursor:
        assert installation.doorbells.ring_senders(cursor, 4) == 4

        def ring() -> int:
            with transaction(other.connection) as others:
                return other.doorbells.ring_senders(others, 4)

        late = in_background(ring)
        wait_for_lock(installation, other)
    assert late.result(timeout=10) == 0
    assert installation.messages() == 4


def test_an_uncertain_outcome_that_is_written_again_counts_once(
    installation: Installation,
) -> None:
    """A commit whose answer was lost is asked again."""
    stack_one(installation)
    claimed = claim(installation)
    for _ in range(2):
        settle(installation, claimed, UNKNOWN)
    assert installation.delivery()["uncertain_count"] == 1


def test_a_dot_is_not_sent_when_the_marker_took_too_long(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frozen between marker and dot, a sender can't know that it still has its lease."""
    times = iter([0.0, LEASE.total_seconds()])
    with ScriptedServer() as server:
        installation.set(smtp_url=server.url, lease=LEASE)
        stack_one(installation)
        monkeypatch.setattr(attempting, "boot_clock", lambda: next(times, 0.0))
        assert installation.send() == {"abandoned": 1, "sent": 1}
        assert server.accepted_count == 1
    assert [each[3] for each in installation.attempts()] == ["abandoned", "sent"]


def test_a_reply_that_was_read_is_written_although_the_connection_broke(
    installation: Installation,
) -> None:
    """What is known need not become uncertain: it is written over another connection."""
    with ScriptedServer([Rule("reply", hold="gate")]) as server:
        installation.set(smtp_url=server.url)
        stack_one(installation)
        with installation.senders(1) as senders:
            server.wait_until_held("gate")
            installation.query(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name = 'pipeline sender'"
            )
            server.release("gate")
        assert isinstance(senders[0].exception(), psycopg2.Error)
    assert installation.states() == {"sent": 1}
    assert [each[3] for each in installation.attempts()] == ["sent"]


def test_a_sender_that_lost_its_place_sends_no_more(installation: Installation) -> None:
    """Another one may have it: there would be more connections than the relay was promised."""
    with ScriptedServer([Rule("rcpt", hold="gate", times=1)]) as server:
        installation.set(smtp_url=server.url, lease=timedelta(seconds=2))
        installation.notify_many(5)
        installation.stack()
        thread = threading.Thread(target=installation.send)
        thread.start()
        server.wait_until_held("gate")
        installation.query("UPDATE pipeline.sender SET token = gen_random_uuid()")
        # The keeper has found out when it has renewed the lease once more.
        leases = {installation.value("SELECT max(lease_expires_at) FROM pipeline.delivery")}

        def renewed_twice() -> bool:
            leases.add(installation.value("SELECT max(lease_expires_at) FROM pipeline.delivery"))
            return len(leases) > 2

        wait_until(renewed_twice)
        server.release("gate")
        thread.join(timeout=20)
        assert server.accepted_count == 1
    assert installation.states() == {"sent": 1, "queued": 4}


def test_a_row_is_claimed_by_a_delivery_or_not_at_all(installation: Installation) -> None:
    """No client can mark a row as done and leave it in no delivery."""
    installation.notify("ann")
    with pytest.raises(psycopg2.errors.CheckViolation):
        installation.query("UPDATE pipeline.email_notification_log SET processed_at = now()")


def test_a_sender_that_was_taken_over_does_not_mark_for_another(
    installation: Installation,
) -> None:
    """The marker of a delivery that another has is not set by the one that had it."""
    first, second = taken_over(installation)
    with transaction(installation.connection) as cursor:
        assert not delivery.mark_transmitting(cursor, first, lease=LEASE)
    assert installation.states() == {"sending": 1}
    with transaction(installation.connection) as cursor:
        assert delivery.mark_transmitting(cursor, second, lease=LEASE)
