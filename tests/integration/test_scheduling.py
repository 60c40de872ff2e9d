"""The scheduler's jobs, and what they say when the database is away."""

from __future__ import annotations

import logging
import threading
from typing import Any
from unittest import mock

import psycopg2
import pytest

from pipeline import scheduling
from pipeline.database import Connection, connect
from pipeline.scheduling import Schedule
from tests.support.installation import Installation
from tests.support.waiting import wait_until


def test_an_outage_is_told_once_a_minute_and_when_it_is_over(
    installation: Installation, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that runs each second says once that it fails, in one line, and when it works again."""
    caplog.set_level(logging.INFO, "pipeline.scheduling")
    is_down = True

    def job(_connection: Connection) -> None:
        if is_down:
            raise psycopg2.OperationalError("refused\n\tIs the server running?\n")

    schedule = Schedule(installation.url, installation.settings, installation.doorbells)
    run = schedule._guarded("tick", job)

    for _ in range(5):
        run()
    assert caplog.messages == [
        "tick failed and is tried again until it works: refused Is the server running?"
    ]
    monkeypatch.setattr(scheduling, "REMIND_EVERY", 0.0)
    run()
    assert len(caplog.messages) == 2
    is_down = False
    run()
    run()
    schedule.close()

    assert len(caplog.messages) == 3
    assert caplog.messages[-1].startswith("tick works again, after ")


def test_a_closed_schedule_leaves_no_connection_behind(installation: Installation) -> None:
    """A job that is connecting while all is closed closes its own, and later runs do nothing."""
    sessions = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name = 'pipeline tick'"
    )
    schedule = Schedule(installation.url, installation.settings, installation.doorbells)
    ran: list[int] = []
    gate, connecting = threading.Event(), threading.Event()

    def slow_connect(*arguments: Any, **options: Any) -> Connection:
        connecting.set()
        gate.wait(60)
        return connect(*arguments, **options)

    with mock.patch.object(scheduling, "connect", slow_connect):
        job = schedule._guarded("tick", lambda _connection: ran.append(1))
        thread = threading.Thread(target=job)
        thread.start()
        connecting.wait(60)
        schedule.close()
        gate.set()
        thread.join(60)
        job()
    assert ran == []
    wait_until(lambda: installation.value(sessions) == 0)
