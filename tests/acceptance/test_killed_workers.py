"""Workers and stackers killed with SIGKILL, and frozen: the promise holds all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fleet import Fleet
from tests.support.installation import Installation
from tests.support.smtp_server import Rule, ScriptedServer
from tests.support.waiting import wait_until

LEASE = 2.0


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


@pytest.fixture
def fleet(tmp_path: Path, database_url: str, server: ScriptedServer) -> Iterator[Fleet]:
    environment = {
        "PIPELINE_DATABASE_URL": database_url,
        "PIPELINE_SMTP_URL": server.url,
        "PIPELINE_MAIL_FROM": "Tracker <tracker@shop.example>",
        "PIPELINE_STACK_EVERY": "1s",
        "PIPELINE_LEASE": f"{LEASE}s",
        "PIPELINE_RECOVER_EVERY": "500ms",
        "PIPELINE_RETRY_BASE": "200ms",
        "PIPELINE_RELAY_PAUSE": "200ms",
        "PIPELINE_RELAY_PAUSE_CAP": "1s",
    }
    with Fleet(tmp_path, environment) as running:
        yield running


def all_final(installation: Installation, fleet: Fleet, count: int, timeout: float = 60) -> None:
    """Wait until so many deliveries are there and sent."""
    wait_until(
        lambda: installation.states() == {"sent": count},
        timeout=timeout,
        message=lambda: f"{installation.states()}\n{fleet.output()}",
        interval=0.1,
    )


def one_of_ann(installation: Installation) -> None:
    installation.add_person("ann")
    installation.notify("ann")


def test_scheduler_and_worker_send_what_is_written(
    installation: Installation, fleet: Fleet, server: ScriptedServer
) -> None:
    """The two processes are all that is needed; SIGTERM stops them in good order."""
    scheduler, worker = fleet.scheduler(), fleet.worker()
    installation.notify_many(40, rows=2)
    all_final(installation, fleet, 40)
    assert server.accepted_count == 40
    assert server.duplicate_ids() == {}
    assert fleet.stop(worker) == 0
    assert fleet.stop(scheduler) == 0


@pytest.mark.parametrize(
    ("rule", "copies", "outcomes"),
    [
        (Rule("rcpt", hold="gate", times=1), 1, ["abandoned", "sent"]),
        (Rule("data", hold="gate", times=1), 1, ["abandoned", "sent"]),
        (Rule("dot", hold="gate", do="close", times=1), 1, ["uncertain", "sent"]),
        (Rule("reply", hold="gate", times=1), 2, ["uncertain", "sent"]),
    ],
    ids=["after the claim", "before the dot", "after the dot", "before the outcome"],
)
def test_D09_a_worker_killed_on_the_way(
    installation: Installation,
    fleet: Fleet,
    server: ScriptedServer,
    rule: Rule,
    copies: int,
    outcomes: list[str],
) -> None:
    """Before the marker it is sent again unasked; after it the policy resends, and says so."""
    server.add(rule)
    one_of_ann(installation)
    fleet.scheduler()
    worker = fleet.worker()
    server.wait_until_held("gate", timeout=30)
    fleet.kill(worker)
    server.release("gate")
    fleet.worker()
    all_final(installation, fleet, 1)
    assert [attempt[3] for attempt in installation.attempts()] == outcomes
    assert server.accepted_count == copies
    assert {accepted.message_id for accepted in server.accepted} == {
        installation.delivery()["message_id"]
    }


def test_D04_hold_leaves_the_decision_to_an_operator(
    installation: Installation, fleet: Fleet, server: ScriptedServer
) -> None:
    """With the policy `hold` nothing is sent twice, and nothing is forgotten."""
    fleet.environment["PIPELINE_ON_UNCERTAIN"] = "hold"
    server.add(Rule("reply", hold="gate", times=1))
    one_of_ann(installation)
    fleet.scheduler()
    worker = fleet.worker()
    server.wait_until_held("gate", timeout=30)
    fleet.kill(worker)
    server.release("gate")
    fleet.worker()
    wait_until(
        lambda: installation.states() == {"held": 1},
        timeout=30,
        message=lambda: f"{installation.states()}\n{fleet.output()}",
    )
    assert server.accepted_count == 1


def test_D18_a_worker_frozen_for_longer_than_its_lease_sends_nothing_twice(
    installation: Installation, fleet: Fleet, server: ScriptedServer
) -> None:
    """It wakes up after another one has sent the mail, and can't pass the marker."""
    server.add(Rule("rcpt", hold="gate", times=1))
    one_of_ann(installation)
    fleet.scheduler()
    frozen = fleet.worker()
    server.wait_until_held("gate", timeout=30)
    fleet.freeze(frozen)
    server.release("gate")
    fleet.worker()
    all_final(installation, fleet, 1)
    fleet.thaw(frozen)
    assert fleet.stop(frozen) == 0
    assert server.accepted_count == 1
    assert [attempt[3] for attempt in installation.attempts()] == ["abandoned", "sent"]


def test_P3_a_relay_down_over_many_ticks_costs_one_mail_a_stack(
    installation: Installation, fleet: Fleet, server: ScriptedServer
) -> None:
    """New rows join what waits, whatever was tried meanwhile."""
    server.go_down()
    for number in range(5):
        installation.add_person(f"p{number}")
    fleet.scheduler()
    fleet.worker()
    for tick in range(6):
        for number in range(5):
            installation.notify(f"p{number}", field=f"field {tick}")
        wait_until(
            lambda: (
                installation.value(
                    "SELECT count(*) FROM pipeline.email_notification_log "
                    "WHERE processed_at IS NULL"
                )
                == 0
            ),
            timeout=20,
            message=fleet.output,
        )
    # Rows that came while their stack's mail was being tried have a delivery of their own until
    # that attempt has failed and takes it in.
    wait_until(
        lambda: sum(n for state, n in installation.states().items() if state != "skipped") == 5,
        timeout=20,
        message=lambda: f"{installation.states()}\n{fleet.output()}",
    )
    server.come_up()
    wait_until(
        lambda: installation.states().get("sent") == 5,
        timeout=40,
        message=lambda: f"{installation.states()}\n{fleet.output()}",
    )
    assert server.accepted_count == 5
    assert (
        installation.value(
            "SELECT count(*) FROM pipeline.email_notification_log WHERE sent_at IS NOT NULL"
        )
        == 30
    )


def test_T01_four_schedulers_and_four_workers_send_each_mail_once(
    installation: Installation, fleet: Fleet, server: ScriptedServer
) -> None:
    """However many processes run, one stack is one email."""
    for _ in range(4):
        fleet.scheduler()
    for _ in range(2):
        fleet.worker(processes=2)
    installation.notify_many(100, rows=2)
    all_final(installation, fleet, 100, timeout=90)
    assert server.accepted_count == 100
    assert installation.value(
        "SELECT count(*) = count(DISTINCT slot) FROM pipeline.tick WHERE schedule = 'stack'"
    )


def test_SIGTERM_with_work_in_flight_loses_nothing(
    installation: Installation, fleet: Fleet, server: ScriptedServer
) -> None:
    """O01: the mail in hand is finished and recorded, the rest goes to the next worker."""
    server.add(Rule("rcpt", delay=0.05))
    installation.notify_many(60)
    fleet.scheduler()
    worker = fleet.worker()
    server.wait_for_accepted(5, timeout=30)
    assert fleet.stop(worker) == 0
    accepted = server.accepted_count
    assert accepted < 60
    assert set(installation.states()) == {"sent", "queued"}
    assert installation.states()["sent"] == accepted
    fleet.worker()
    all_final(installation, fleet, 60)
    assert server.accepted_count == 60
    assert [attempt[3] for attempt in installation.attempts()] == ["sent"] * 60
