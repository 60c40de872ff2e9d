"""`pipeline worker` and `pipeline scheduler` as real processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import Running, descendants, environment, is_alive, run, running
from tests.support.postgres import execute
from tests.support.shell import ROOT, Terminal
from tests.support.smtp_server import Rule, ScriptedServer
from tests.support.waiting import wait_until


def write(url: str, item: str) -> None:
    execute(
        url,
        "INSERT INTO pipeline.recipient (id, email) VALUES ('1', 'ann@example.com')"
        " ON CONFLICT DO NOTHING",
    )
    execute(
        url,
        "INSERT INTO pipeline.email_notification_log"
        " (receiver_id, entity_name, entity_identifier, data) VALUES ('1', 'issue', %s, "
        """'{"verb": "updated", "field": "state", "old_value": "Todo", "new_value": "Done"}')""",
        (item,),
    )


def worker_processes(url: str) -> list[int]:
    seen = run("status", "--json", database_url=url).json["workers"]
    return [int(worker["name"].rpartition(":")[2]) for worker in seen]


def stop(worker: Running, signum: int = signal.SIGTERM) -> None:
    children = descendants(worker.pid)

    assert worker.stop(signum) == 0, worker.said
    assert [pid for pid in children if is_alive(pid)] == []


@pytest.mark.slow
def test_a_storm_of_refusals_does_not_fill_the_log(database_url: str, tmp_path: Path) -> None:
    """200 mails are refused: fifty lines say so, and one how many there were more."""
    execute(
        database_url,
        "INSERT INTO pipeline.recipient (id, email)"
        " SELECT n, 'p' || n || '@example.com' FROM generate_series(1, 200) AS n",
    )
    execute(
        database_url,
        "INSERT INTO pipeline.email_notification_log (receiver_id, entity_name, entity_identifier,"
        """ data) SELECT n, 'issue', 'a', '{"field": "state", "new_value": "x"}'"""
        " FROM generate_series(1, 200) AS n",
    )
    failed = "SELECT count(*) FROM pipeline.delivery WHERE state = 'failed'"
    with ScriptedServer([Rule("rcpt", reply="550 5.1.1 No such user")]) as server:
        settings = environment(database_url, smtp_url=server.url, stack_every="1s")
        with (
            running(tmp_path / "scheduler.log", "scheduler", environment=settings) as scheduler,
            running(tmp_path / "worker.log", "worker", environment=settings) as worker,
        ):
            wait_until(lambda: execute(database_url, failed) == [(200,)], 60)
            stop(worker)
            stop(scheduler)

    assert worker.said.count("now failed: 550 5.1.1 No such user") == 50
    assert "and 150 more like this in that minute: Delivery %s" in worker.said


@pytest.mark.slow
def test_worker_and_scheduler_send_what_is_written(database_url: str, tmp_path: Path) -> None:
    """The two processes turn a row into a mail, are seen, and are gone after SIGTERM."""
    with ScriptedServer() as server:
        settings = environment(database_url, smtp_url=server.url, stack_every="1s")
        with (
            running(tmp_path / "scheduler.log", "scheduler", environment=settings) as scheduler,
            running(
                tmp_path / "worker.log",
                *("worker", "--processes", "2", "--threads", "2"),
                environment=settings,
            ) as worker,
        ):
            write(database_url, "a")
            server.wait_for_accepted(1)
            now = run("status", "--json", database_url=database_url).json
            wait_until(lambda: len(worker_processes(database_url)) == 2)
            stop(worker)
            stop(scheduler)

    gone = run("status", "--json", database_url=database_url).json
    assert len(now["schedulers"]) == 1
    assert now["last_tick_at"] is not None
    assert (gone["schedulers"], gone["workers"]) == ([], [])


@pytest.mark.slow
def test_O01_a_killed_worker_process_is_replaced(database_url: str, tmp_path: Path) -> None:
    """When a worker process is killed the next ones take over within seconds."""
    with ScriptedServer() as server:
        settings = environment(database_url, smtp_url=server.url, stack_every="1s")
        with (
            running(tmp_path / "scheduler.log", "scheduler", environment=settings),
            running(tmp_path / "worker.log", "worker", environment=settings) as worker,
        ):
            worker.wait_for("ready for action")
            first = wait_until(lambda: worker_processes(database_url), 30)[0]
            # Before it says so, Dramatiq would wait half a minute for one that has died.
            worker.wait_for("is booting up")
            os.kill(first, signal.SIGKILL)
            worker.wait_for("starting them again")
            write(database_url, "a")
            server.wait_for_accepted(1)
            stop(worker, signal.SIGINT)


@pytest.mark.slow
def test_workers_die_with_their_supervisor(database_url: str, tmp_path: Path) -> None:
    """SIGKILL of `pipeline worker` leaves none of its processes behind."""
    settings = environment(database_url, smtp_url="smtp://127.0.0.1:1")
    with running(tmp_path / "worker.log", "worker", environment=settings) as worker:
        wait_until(lambda: worker_processes(database_url), 30)
        children = descendants(worker.pid)
        worker.kill()

        assert len(children) >= 2
        wait_until(lambda: not any(map(is_alive, children)))


@pytest.mark.slow
def test_a_signal_to_the_whole_group_is_one_signal(database_url: str, tmp_path: Path) -> None:
    """Ctrl-C in a terminal reaches every process of the group, and cuts nothing off."""
    with ScriptedServer() as server:
        settings = environment(database_url, smtp_url=server.url, stack_every="1s")
        with running(tmp_path / "worker.log", "worker", environment=settings) as worker:
            wait_until(lambda: worker_processes(database_url), 30)
            os.killpg(worker.pid, signal.SIGINT)

            assert worker.process.wait(90) == 0
            assert "Killing worker process" not in worker.said


@pytest.mark.slow
def test_the_embedded_database_is_prepared_on_the_way(tmp_path: Path) -> None:
    """Without a database named, worker and scheduler share an embedded one and make its schema."""
    data = Path("/tmp", f"pipeline-cli-{os.getpid()}")
    settings = environment(None, data_dir=data, smtp_url="smtp://127.0.0.1:1")
    try:
        with (
            running(tmp_path / "scheduler.log", "scheduler", environment=settings) as scheduler,
            running(tmp_path / "worker.log", "worker", environment=settings) as worker,
        ):
            scheduler.wait_for("Scheduler is running")
            worker.wait_for("ready for action")
            stop(worker)
            stop(scheduler)
            assert "using the embedded Postgres" in worker.said
            pid = data / "postgres" / "data" / "postmaster.pid"
            wait_until(lambda: not pid.exists(), message="the server is still there")
    finally:
        shutil.rmtree(data, ignore_errors=True)


@pytest.mark.slow
def test_the_same_without_the_command(tmp_path: Path) -> None:
    """`python scheduler.py` and `dramatiq pipeline.worker` prepare it as well."""
    data = Path("/tmp", f"pipeline-plain-{os.getpid()}")
    settings = environment(None, data_dir=data, smtp_url="smtp://127.0.0.1:1")
    try:
        with Terminal(tmp_path, ROOT, settings) as terminal:
            processes = [
                terminal.start("python scheduler.py"),
                terminal.start("dramatiq pipeline.worker --processes 1 --threads 2"),
            ]

            def seen() -> bool:
                told = json.loads(terminal.run("pipeline status --json || echo {}"))
                return bool(told.get("schedulers") and told.get("workers"))

            wait_until(seen, 30, terminal.output)
            assert [terminal.stop(process) for process in processes] == [0, 0]
            assert "does not exist" not in terminal.output()
    finally:
        shutil.rmtree(data, ignore_errors=True)


def test_the_scheduler_file_names_a_bad_setting(tmp_path: Path) -> None:
    """As the command does, with the same exit code."""
    settings = environment(None, data_dir=tmp_path, stack_every="often")
    done = subprocess.run(
        [sys.executable, str(ROOT / "scheduler.py")],
        env=settings,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "PIPELINE_STACK_EVERY 'often'" in done.stderr
