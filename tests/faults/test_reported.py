"""Faults that users of other systems reported, each by its number, that no other room has."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from apscheduler.schedulers.background import BackgroundScheduler

from pipeline.lease import Keeper
from pipeline.scheduling import ALIAS, Schedule
from pipeline.stacking import Pass
from tests.support.installation import Installation
from tests.support.smtp_server import Rule, ScriptedServer
from tests.support.waiting import wait_until


def test_D06_one_mail_that_hangs_costs_the_others_nothing(installation: Installation) -> None:
    """Of ten mails the sixth hangs: five are written down as sent by then, four follow."""
    installation.set(command_timeout=timedelta(milliseconds=500))
    with ScriptedServer([Rule("rcpt", hold="hung", times=1, message=6)]) as server:
        installation.set(smtp_url=server.url)
        installation.notify_many(10)
        installation.stack()
        sender = threading.Thread(target=installation.send)
        sender.start()
        server.wait_until_held("hung")
        assert installation.states() == {"sent": 5, "sending": 5}
        sender.join(timeout=30)
        server.release("hung")
        assert installation.states() == {"sent": 9, "deferred": 1}
        assert (server.accepted_count, server.duplicate_ids()) == (9, {})


@pytest.mark.parametrize(
    "state", ["queued", "sending", "transmitting", "deferred", "uncertain", "held"]
)
def test_D11_rows_are_kept_until_their_mail_has_ended(
    installation: Installation, state: str
) -> None:
    """However old: a purge takes nothing that a later attempt would miss."""
    installation.set(keep=timedelta(minutes=1))
    installation.notify("ann")
    installation.stack()
    installation.query(
        "UPDATE pipeline.delivery SET state = %s, updated_at = now() - interval '9 days'", (state,)
    )

    assert installation.recovery.purge() == 0
    assert installation.value("SELECT count(*) FROM pipeline.email_notification_log") == 1


@pytest.mark.parametrize("seconds", [0.5, 3, 30, 3600])
def test_D17_a_lease_is_renewed_three_times_within_its_length(seconds: float) -> None:
    """One renewal that is lost, or late, takes no delivery from a sender that is alive."""
    lease = timedelta(seconds=seconds)
    keeper = Keeper("", lease=lease)

    assert keeper.interval <= keeper.place_lease.total_seconds() / 3 <= seconds / 3


@pytest.mark.parametrize("state", ["sending", "transmitting", "uncertain"])
def test_D19_a_delivery_that_nobody_holds_goes_on(installation: Installation, state: str) -> None:
    """Without a lease, a token or an attempt, as no code of ours leaves it: it is found all the
    same, also where its stack has another delivery that waits."""
    with ScriptedServer() as server:
        installation.set(smtp_url=server.url)
        installation.add_person("ann")
        installation.notify("ann")
        installation.stack()
        installation.query("UPDATE pipeline.delivery SET state = %s", (state,))
        installation.notify("ann", field="name")
        installation.stack()
        assert installation.states() == {state: 1, "queued": 1}

        installation.recovery.run()
        installation.send()

        # What was not sent takes the other in; what may have been received does not.
        assert installation.states() == (
            {"sent": 1, "skipped": 1} if state == "sending" else {"sent": 2}
        )
        assert server.duplicate_ids() == {}


def test_T02_a_job_that_is_minutes_late_is_run(installation: Installation) -> None:
    """APScheduler by itself drops a run that is a second late without a word."""
    installation.query(
        "INSERT INTO pipeline.tick (schedule, slot, finished_at) "
        "VALUES ('old', '2020-01-01', now())"
    )
    schedule = Schedule(installation.url, installation.settings, installation.doorbells)
    scheduler = BackgroundScheduler(timezone="UTC")
    schedule.add_jobs(scheduler)
    scheduler.start(paused=True)
    try:
        # It runs every ten minutes: if this one were dropped, the next would be in five.
        late = datetime.now(UTC) - timedelta(minutes=5)
        scheduler.modify_job("pipeline.purge", ALIAS, next_run_time=late)
        scheduler.resume()
        wait_until(
            lambda: (
                not installation.value(
                    "SELECT count(*) FROM pipeline.tick WHERE slot < now() - interval '1 year'"
                )
            )
        )
    finally:
        scheduler.shutdown()
        schedule.close()


def test_B04_a_backlog_is_stacked_in_small_transactions(installation: Installation) -> None:
    """However many wait: each commit is bounded by stacks and by rows."""
    installation.set(stack_limit=40, row_limit=100)
    installation.notify_many(100, items=4, rows=5)
    commits: list[tuple[int, int]] = []

    def on_chunk(done: Pass) -> None:
        commits.append((done.claimed_count, done.created_count))

    installation.stack(on_chunk=on_chunk)
    each = [
        (rows - rows_before, stacks - stacks_before)
        for (rows, stacks), (rows_before, stacks_before) in zip(
            commits, [(0, 0), *commits], strict=False
        )
    ]

    assert commits[-1] == (2000, 400)
    assert max(rows for rows, _ in each) <= 100
    assert max(stacks for _, stacks in each) <= 40


def test_O02_two_senders_at_once_send_each_mail_once(installation: Installation) -> None:
    """They share what waits, and neither waits for the other."""
    installation.set(chunk=5)
    with ScriptedServer() as server, ThreadPoolExecutor(2) as pool:
        installation.set(smtp_url=server.url)
        installation.notify_many(60)
        installation.stack()
        barrier = threading.Barrier(2)

        def send(_: int) -> dict[str, int]:
            barrier.wait(timeout=10)
            return installation.send()

        counts = list(pool.map(send, range(2)))

        assert sum(count.get("sent", 0) for count in counts) == 60
        assert (server.accepted_count, server.duplicate_ids()) == (60, {})
    assert installation.states() == {"sent": 60}
