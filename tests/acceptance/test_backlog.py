"""Backlogs as large as those that take a cluster down with one message a delivery."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest

from tests.support.fleet import ROOT, Fleet
from tests.support.installation import Installation
from tests.support.waiting import wait_until

SERVER = ("-m", "tests.support.smtp_server", "--without-content")


@pytest.fixture
def relay(tmp_path: Path, free_port: int) -> Iterator[str]:
    """A server in a process of its own, which records what it accepts."""
    command = [sys.executable, *SERVER, "--port", str(free_port), "--record", "accepted.jsonl"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"listening")
    yield f"smtp://127.0.0.1:{free_port}"
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    "count", [1_000, pytest.param(50_000, marks=[pytest.mark.long, pytest.mark.timeout(1200)])]
)
def test_a_backlog_with_all_workers_stopped_does_no_harm_and_is_sent(
    installation: Installation, tmp_path: Path, relay: str, count: int
) -> None:
    """The queue stays short, Postgres stays well, and then each mail is sent once."""
    installation.set(smtp_url=relay)
    installation.notify_many(count)
    with Fleet(
        tmp_path,
        {
            "PIPELINE_DATABASE_URL": installation.url,
            "PIPELINE_SMTP_URL": relay,
            "PIPELINE_MAIL_FROM": "Tracker <tracker@shop.example>",
            "PIPELINE_STACK_EVERY": "1s",
        },
    ) as fleet:
        fleet.scheduler()
        installation.stack()
        wait_until(
            lambda: installation.states() == {"queued": count},
            message=lambda: f"{installation.states()}\n{fleet.output()}",
        )
        assert installation.messages() <= installation.settings.senders + 1
        psycopg2.connect(installation.url).close()

        fleet.worker(processes=2, threads=4)
        wait_until(
            lambda: installation.states() == {"sent": count},
            timeout=60 + count / 50,
            interval=0.5,
            message=lambda: f"{installation.states()}\n{fleet.output()}",
        )
        locks = installation.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
        assert locks < 1_000
    lines = (tmp_path / "accepted.jsonl").read_text().splitlines()
    assert len(lines) == count
    assert installation.value("SELECT count(*) FROM pipeline.delivery_attempt") == count
