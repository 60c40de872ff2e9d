"""`pipeline chaos`, whole: real processes, killed; the ledger afterwards."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from tests.support.commands import ROOT, Ran, descendants, environment, is_alive, running
from tests.support.postgres import execute
from tests.support.waiting import wait_until

#: Shows the command that is run here.
PAGE = ROOT / "docs" / "chaos.md"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def chaos(tmp_path: Path, *options: str, database_url: str | None = None) -> Ran:
    out = tmp_path / "out"
    surroundings = environment(database_url)
    with running(
        tmp_path / "err", "chaos", "--json", *options, environment=surroundings, out=out
    ) as run:
        status = run.process.wait(500)
    return Ran(status, out.read_text(), run.said)


def test_a_short_chaos_loses_nothing(tmp_path: Path) -> None:
    """On a server of its own: killed, frozen, cut and restarted; the report says what was done."""
    report = str(tmp_path / "report")
    [shown] = re.findall(r"^pipeline chaos (.*)$", PAGE.read_text(), re.MULTILINE)
    ran = chaos(tmp_path, *shown.replace("chaos-report", report).split())
    assert ran.status == 0, ran.out + ran.err
    told = ran.json
    assert (told["lost"], told["dispatched_twice"], told["unexplained"]) == (0, 0, 0)
    assert told["all_final"]
    assert told["done"]["kill"] >= 5
    assert told["done"]["restart the database"] >= 1
    assert told["notifications"] > 100
    assert told["mails_received"] > 20
    assert set(told["deliveries"]) <= {"sent", "failed", "skipped"}
    assert json.loads((tmp_path / "report" / "report.json").read_text()) == told
    assert "<svg" in (tmp_path / "report" / "timeline.svg").read_text()


def test_chaos_on_a_users_server_touches_nothing_else(database_url: str, tmp_path: Path) -> None:
    """Rows that wait there wait still, nobody was sent anything, and no database is left behind."""
    execute(
        database_url,
        "INSERT INTO pipeline.email_notification_log"
        " (receiver_id, entity_name, entity_identifier, data) VALUES ('1', 'issue', 'a', '{}')",
    )
    ran = chaos(
        tmp_path, "--minutes", "0.08", "--seed", "5", "--on-uncertain", "hold",
        database_url=database_url,
    )  # fmt: skip
    assert ran.status == 0, ran.out + ran.err
    assert "restart the database" not in ran.json["done"]
    assert ran.json["notifications"] > 0
    [name] = {word for word in ran.err.split() if word.startswith("pipeline_chaos_")}
    assert execute(
        database_url, "SELECT count(*), count(processed_at) FROM pipeline.email_notification_log"
    ) == [(1, 0)]
    left = execute(database_url, "SELECT datname FROM pg_database")
    assert (name.rstrip(","),) not in left


def test_a_chaos_that_is_killed_leaves_no_database_behind(
    database_url: str, tmp_path: Path
) -> None:
    """Its database is dropped by a process that outlives it for that, and then ends too."""
    options = ("--minutes", "30", "--faults", "0")
    surroundings = environment(database_url) | {"TMPDIR": str(tmp_path)}
    with running(tmp_path / "said", "chaos", *options, environment=surroundings) as run:
        run.wait_for(" s chaos: ", 120)
        [name] = {word for word in run.said.split() if word.startswith("pipeline_chaos_")}
        there = f"SELECT datname FROM pg_database WHERE datname = '{name.rstrip(',')}'"
        assert execute(database_url, there)
        children = descendants(run.pid)
        run.kill()
    wait_until(lambda: not execute(database_url, there), 120)
    wait_until(lambda: not [pid for pid in children if is_alive(pid)], 120)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_a_chaos_that_is_stopped_leaves_nothing_running(
    tmp_path: Path, signum: signal.Signals
) -> None:
    """Ctrl-C brings peace and the ledger early; after SIGKILL everything is gone with it."""
    temporary = Path(tempfile.gettempdir(), f"pipeline-chaos-test-{os.urandom(4).hex()}")
    temporary.mkdir()
    temporary.chmod(0o755)
    surroundings = environment() | {"TMPDIR": str(temporary)}
    options = ("--minutes", "30", "--faults", "0", "--rate", "20")
    with running(tmp_path / "said", "chaos", *options, environment=surroundings) as run:
        run.wait_for(" s chaos: ")
        wait_until(lambda: len(descendants(run.pid)) >= 7, 60)
        children = descendants(run.pid)
        run.process.send_signal(signum)
        status = run.process.wait(300)
    wait_until(lambda: not [pid for pid in children if is_alive(pid)], 60)
    assert status == (0 if signum == signal.SIGINT else -signal.SIGKILL), run.said
    shutil.rmtree(temporary, ignore_errors=True)
