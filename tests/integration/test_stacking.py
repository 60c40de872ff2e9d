"""Stacking: rows become deliveries, in one transaction, whoever else does the same."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipeline.database import transaction
from pipeline.stacking import claim_chunk, run_pass
from tests.support.installation import Installation
from tests.support.smtp_server import ScriptedServer
from tests.support.waiting import wait_until


def test_rows_of_one_receiver_and_item_become_one_delivery(installation: Installation) -> None:
    """A stack is one receiver and one item, whatever happened to it."""
    for field in ("state", "priority", "name"):
        installation.notify("ann", "17", field=field)
    installation.notify("ann", "18")
    installation.notify("cid", "17")

    done = installation.stack()

    assert (done.claimed_count, done.created_count, done.message_count) == (5, 3, 1)
    assert installation.query(
        "SELECT receiver_id, entity_identifier, notification_count, state, attempt_count "
        "FROM pipeline.delivery ORDER BY 1, 2"
    ) == [
        ("ann", "17", 3, "queued", 0),
        ("ann", "18", 1, "queued", 0),
        ("cid", "17", 1, "queued", 0),
    ]


def test_D02_a_delivery_has_exactly_the_rows_of_its_group(installation: Installation) -> None:
    """Each row points to the delivery of its own receiver and item, and to no other."""
    installation.notify_many(20, items=3, rows=4)
    installation.stack()
    assert (
        installation.value(
            "SELECT count(*) FROM pipeline.email_notification_log n "
            "JOIN pipeline.delivery d ON d.id = n.delivery_id "
            "AND (d.receiver_id, d.entity_name, d.entity_identifier) "
            "= (n.receiver_id, n.entity_name, n.entity_identifier)"
        )
        == 240
    )
    assert installation.value("SELECT count(*) FROM pipeline.delivery") == 60


def test_a_pass_over_nothing_writes_nothing(installation: Installation) -> None:
    """No row, no delivery, no message."""
    done = installation.stack()
    assert done.claimed_count == 0
    assert installation.messages() == 0


def test_a_pass_walks_on_over_many_chunks(installation: Installation) -> None:
    """A chunk is bounded by stacks and by rows; a pass takes as many as it needs."""
    installation.set(stack_limit=7, row_limit=5)
    installation.notify_many(30, rows=3)
    chunks: list[int] = []
    done = installation.stack(on_chunk=lambda so_far: chunks.append(so_far.claimed_count))
    assert (done.claimed_count, done.created_count) == (90, 30)
    assert max(b - a for a, b in zip([0, *chunks], chunks, strict=False)) <= 5
    assert (
        installation.value(
            "SELECT count(*) FROM pipeline.email_notification_log WHERE processed_at IS NULL"
        )
        == 0
    )


def test_a_giant_stack_is_claimed_in_parts_and_is_one_mail(installation: Installation) -> None:
    """No transaction claims more rows than the limit, whatever the stack has."""
    installation.set(row_limit=5)
    installation.notify_many(2, rows=23)
    installation.notify("p1", "2")
    chunks: list[int] = []
    with ScriptedServer() as server:
        installation.set(smtp_url=server.url)
        done = installation.stack(on_chunk=lambda so_far: chunks.append(so_far.claimed_count))
        assert installation.send() == {"sent": 3}

    assert (done.claimed_count, done.created_count) == (47, 3)
    assert max(b - a for a, b in zip([0, *chunks], chunks, strict=False)) == 5
    counts = "SELECT notification_count FROM pipeline.delivery ORDER BY 1"
    assert installation.query(counts) == [(1,), (23,), (23,)]
    unsent = "SELECT count(*) FROM pipeline.email_notification_log WHERE sent_at IS NULL"
    assert installation.value(unsent) == 0


def claim_a_part(installation: Installation) -> None:
    """A stacker that dies after the first part of a stack."""
    parts: list[int] = []
    installation.stack(
        on_chunk=lambda so_far: parts.append(so_far.claimed_count), should_stop=lambda: bool(parts)
    )
    assert parts == [5]


def test_a_stack_of_which_a_part_is_claimed_is_not_sent_until_the_rest_has_joined(
    installation: Installation,
) -> None:
    """Its stacker died; the next pass goes on, and the mail tells of all."""
    installation.set(row_limit=5)
    installation.notify_many(1, rows=12)
    with ScriptedServer() as server:
        installation.set(smtp_url=server.url)
        claim_a_part(installation)
        installation.recovery.run()
        assert installation.send() == {}
        done = installation.stack()
        assert (done.claimed_count, done.created_count, done.joined_count) == (7, 0, 2)
        assert installation.send() == {"sent": 1}
    assert installation.delivery()["notification_count"] == 12


def test_a_part_that_nobody_goes_on_with_is_sent_after_a_while(installation: Installation) -> None:
    """It waits for half a minute; what comes later is another mail, and no row is in both."""
    installation.set(row_limit=5)
    installation.notify_many(1, rows=12)
    with ScriptedServer() as server:
        installation.set(smtp_url=server.url)
        claim_a_part(installation)
        wait = "SELECT extract(epoch FROM next_attempt_at - now()) FROM pipeline.delivery"
        assert 0 < installation.value(wait) <= 30
        installation.query("UPDATE pipeline.delivery SET next_attempt_at = now()")
        assert installation.send() == {"sent": 1}
        assert installation.stack().created_count == 1
        assert installation.send() == {"sent": 1}
        assert server.accepted_count == 2
    rows = (
        "SELECT count(*), count(sent_at), count(DISTINCT delivery_id) "
        "FROM pipeline.email_notification_log"
    )
    assert installation.query(rows) == [(12, 12, 2)]


def test_a_stack_that_joins_in_parts_leaves_a_deferred_delivery_deferred(
    installation: Installation,
) -> None:
    """It is not tried before its time because the stack is whole."""
    installation.set(row_limit=5)
    installation.notify_many(1, rows=1)
    installation.stack()
    installation.query(
        "UPDATE pipeline.delivery SET state = 'deferred', attempt_count = 1, "
        "next_attempt_at = now() + interval '1 hour'"
    )
    installation.notify_many(1, rows=12)
    assert installation.stack().joined_count == 3
    found = installation.delivery()
    assert (found["state"], found["notification_count"]) == ("deferred", 13)
    assert installation.value(
        "SELECT next_attempt_at > now() + interval '50 minutes' FROM pipeline.delivery"
    )


def test_an_urgent_pass_claims_a_giant_stack_in_parts(installation: Installation) -> None:
    """One row of its first part is urgent: all of it is due, and bounded all the same."""
    installation.set(row_limit=5)
    installation.notify("p1", "1", urgent=True)
    installation.notify_many(1, rows=17)
    installation.notify("p1", "2", urgent=True)
    installation.notify("p1", "3")
    chunks: list[int] = []
    done = installation.stack(
        urgent_only=True, on_chunk=lambda so_far: chunks.append(so_far.claimed_count)
    )
    assert max(b - a for a, b in zip([0, *chunks], chunks, strict=False)) == 5
    counts = "SELECT notification_count FROM pipeline.delivery ORDER BY 1"
    assert done.claimed_count == 19
    assert installation.query(counts) == [(1,), (18,)]
    assert installation.value("SELECT bool_and(next_attempt_at <= now()) FROM pipeline.delivery")


@pytest.mark.parametrize("stackers", [2, 4])
def test_D01_stackers_at_one_giant_stack_make_one_delivery(
    installation: Installation, stackers: int
) -> None:
    """Its parts are claimed by whoever comes, and are one mail."""
    installation.set(row_limit=20)
    installation.notify_many(1, rows=500)
    barrier = threading.Barrier(stackers)

    def stack(_: int) -> int:
        other = Installation(installation.url, row_limit=20)
        try:
            barrier.wait(timeout=60)
            return other.stack().claimed_count
        finally:
            other.close()

    with ThreadPoolExecutor(stackers) as pool:
        claimed = sum(pool.map(stack, range(stackers)))
    claimed += installation.stack().claimed_count
    assert claimed == 500
    assert installation.query("SELECT notification_count FROM pipeline.delivery") == [(500,)]


@pytest.mark.parametrize("stackers", [2, 4])
def test_D01_stackers_on_a_barrier_make_one_delivery_a_stack(
    installation: Installation, stackers: int
) -> None:
    """However many stackers run at once, no stack is split and no row is claimed twice."""
    installation.set(stack_limit=20)
    installation.notify_many(200, rows=3)
    barrier = threading.Barrier(stackers)

    def stack(_: int) -> int:
        other = Installation(installation.url, stack_limit=20)
        try:
            barrier.wait(timeout=30)
            return other.stack().claimed_count
        finally:
            other.close()

    with ThreadPoolExecutor(stackers) as pool:
        claimed = list(pool.map(stack, range(stackers)))

    assert sum(claimed) == 600
    assert installation.query(
        "SELECT count(*), min(notification_count), max(notification_count) FROM pipeline.delivery"
    ) == [(200, 3, 3)]


def test_D10_a_stacker_that_dies_before_its_commit_leaves_nothing(
    installation: Installation,
) -> None:
    """Claim, deliveries, doorbells and messages are one transaction."""
    installation.notify_many(5)

    def die_after_the_claim() -> None:
        with transaction(installation.connection) as cursor:
            done, _ = claim_chunk(
                cursor,
                installation.settings,
                installation.doorbells,
                urgent_only=False,
            )
            assert (done.claimed_count, done.message_count) == (5, 1)
            raise RuntimeError("dies")

    with pytest.raises(RuntimeError, match="dies"):
        die_after_the_claim()
    for table in ("pipeline.delivery", "pipeline.doorbell", "dramatiq.queue"):
        assert installation.value(f"SELECT count(*) FROM {table}") == 0, table
    assert (
        installation.value(
            "SELECT count(*) FROM pipeline.email_notification_log WHERE processed_at IS NULL"
        )
        == 5
    )


def test_new_rows_join_the_delivery_of_their_stack_that_still_waits(
    installation: Installation,
) -> None:
    """A relay that is down for many ticks costs one mail a stack, not one a tick."""
    for field in ("state", "priority", "name"):
        installation.notify("ann", "17", field=field)
        installation.stack()
    delivery = installation.delivery()
    assert delivery["notification_count"] == 3
    assert (
        installation.value(
            "SELECT count(*) FROM pipeline.email_notification_log WHERE delivery_id = %s",
            (delivery["id"],),
        )
        == 3
    )


def test_what_joins_a_delivery_is_given_its_own_time(installation: Installation) -> None:
    """A row that joins an old delivery doesn't fail minutes later for the age of the others."""
    installation.notify("ann", "17")
    installation.stack()
    installation.query("UPDATE pipeline.delivery SET expires_at = now() + interval '1 minute'")
    installation.notify("ann", "17", field="name")
    installation.stack()
    assert installation.value(
        "SELECT expires_at > now() + interval '2 days' FROM pipeline.delivery"
    )


def test_rows_do_not_join_a_delivery_that_may_have_been_received(
    installation: Installation,
) -> None:
    """The same Message-ID must not come with other content."""
    installation.notify("ann", "17")
    installation.stack()
    installation.query("UPDATE pipeline.delivery SET uncertain_count = 1")
    installation.notify("ann", "17", field="name")
    installation.stack()
    assert installation.query("SELECT notification_count FROM pipeline.delivery") == [(1,), (1,)]


@pytest.mark.parametrize("state", ["sending", "transmitting", "sent", "failed", "held"])
def test_rows_do_not_join_a_delivery_that_no_longer_waits(
    installation: Installation, state: str
) -> None:
    """What is on its way, or over, can't take anything more in."""
    installation.notify("ann", "17")
    installation.stack()
    installation.query("UPDATE pipeline.delivery SET state = %s", (state,))
    installation.notify("ann", "17", field="name")
    installation.stack()
    assert installation.states() == {state: 1, "queued": 1}


def test_an_urgent_pass_takes_urgent_stacks_whole_and_leaves_the_others(
    installation: Installation,
) -> None:
    """What is urgent takes along what else happened to the item; the rest waits for the tick."""
    installation.notify("ann", "17")
    installation.notify("ann", "17", field="state", urgent=True)
    installation.notify("ann", "18")
    done = installation.stack(urgent_only=True)
    assert (done.claimed_count, done.created_count) == (2, 1)
    assert installation.stack().claimed_count == 1


def test_doorbells_are_capped_whatever_the_backlog(installation: Installation) -> None:
    """With all workers stopped the queue holds no more messages than there may be senders."""
    installation.set(senders=3, stack_limit=50, chunk=1)
    for _ in range(3):
        installation.notify_many(200)
        installation.stack()
    installation.recovery.ring()
    assert installation.messages() == 3


def test_stackers_at_once_keep_to_the_cap_on_doorbells(installation: Installation) -> None:
    """The cap is one for all stackers together."""
    installation.notify_many(300)
    barrier = threading.Barrier(4)

    def stack(_: int) -> None:
        other = Installation(installation.url, senders=2, stack_limit=10, chunk=1)
        try:
            barrier.wait(timeout=30)
            other.stack()
        finally:
            other.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(stack, range(4)))
    assert installation.messages() == 2


def test_a_stack_that_another_pass_has_is_left_to_it(installation: Installation) -> None:
    """The advisory lock of a stack keeps a second pass from it until the first has committed."""
    installation.notify("ann", "17")
    installation.notify("bea", "17")
    other = Installation(installation.url)
    try:
        with transaction(other.connection) as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(pipeline.stack_key('ann', 'issue', '17'))")
            assert installation.stack().claimed_count == 1
        assert (
            run_pass(
                installation.connection, installation.settings, installation.doorbells
            ).claimed_count
            == 1
        )
    finally:
        other.close()


def test_a_message_id_carries_the_configured_domain(installation: Installation) -> None:
    """H07: never the machine's own name."""
    installation.notify()
    installation.stack()
    delivery = installation.delivery()
    assert delivery["message_id"] == f"<{delivery['id']}@shop.example>"


def test_no_chunk_is_compiled_by_the_server(installation: Installation) -> None:
    """JIT takes seconds for a plan that takes milliseconds, and is on in most packages of it."""
    with transaction(installation.connection) as cursor:
        cursor.execute("SHOW jit")
        assert cursor.fetchone() == ("off",)


def test_ids_begin_with_the_time(installation: Installation) -> None:
    """Those of a later pass come after all earlier ones, so that indexes grow at their end."""
    installation.notify_many(20)
    installation.stack()
    wait_until(
        lambda: installation.value(
            "SELECT clock_timestamp() > max(created_at) + interval '2 ms' FROM pipeline.delivery"
        )
    )
    first = installation.value("SELECT clock_timestamp()")
    installation.notify_many(20, items=2)
    installation.stack()
    ids = [
        uuid.UUID(id_)
        for (id_,) in installation.query(
            "SELECT id::text FROM pipeline.delivery ORDER BY created_at, id"
        )
    ]
    rows = installation.query(
        "SELECT id FROM pipeline.email_notification_log WHERE created_at > %s "
        "AND id < ANY (SELECT id FROM pipeline.email_notification_log WHERE created_at < %s)",
        (first, first),
    )
    assert rows == []
    assert len(set(ids)) >= 40
    assert ids == sorted(ids)
    assert {(id_.version, id_.variant) for id_ in ids} == {(7, uuid.RFC_4122)}
