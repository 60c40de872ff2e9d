"""`pipeline demo` as a real process: it ends well, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import (
    Ran,
    Running,
    descendants,
    environment,
    is_alive,
    run,
    running,
)
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture
def data() -> Iterator[Path]:
    """A folder for the demo's database, with a short and open path."""
    folder = Path(tempfile.gettempdir(), f"pipeline-demo-test-{os.urandom(4).hex()}")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def once(tmp_path: Path, *options: str, **settings: str) -> Ran:
    """Run `pipeline demo --once`, and see to it that it leaves nothing behind."""
    out = tmp_path / "out"
    # Not below tmp_path: that is closed to the account that runs Postgres for root.
    temporary = Path(tempfile.gettempdir(), f"pipeline-once-{os.urandom(4).hex()}")
    temporary.mkdir()
    temporary.chmod(0o755)
    surroundings = environment(**settings) | {"TMPDIR": str(temporary)}
    with running(
        tmp_path / "err", "demo", "--once", *options, environment=surroundings, out=out
    ) as demo:
        status = demo.process.wait(200)
    # Dramatiq makes an empty folder of its own as soon as it is imported; Python's tempfile looks
    # whether it can write here, and is sometimes killed before it has tidied up.
    left = [
        path
        for path in temporary.iterdir()
        if path.name != "dramatiq-prometheus"
        and not (path.is_file() and path.read_bytes() in (b"", b"blat"))
    ]
    shutil.rmtree(temporary)
    assert left == []
    return Ran(status, out.read_text(), demo.said)


def inbox_of(demo: Running) -> str:
    """The address of its page, once it is told."""
    demo.wait_for("Ctrl-C stops all of it")
    found = re.search(r"http://\S+", demo.said)
    assert found is not None
    return found[0]


def mails(address: str) -> Any:
    with urllib.request.urlopen(f"{address}api/mails", timeout=5) as answer:
        return json.load(answer)


def status(tmp_path: Path, settings: dict[str, str]) -> Any:
    """What `pipeline status` says, from a process that doesn't stay with the database."""
    out = tmp_path / "status"
    command = ("status", "--json")
    with running(tmp_path / "err", *command, environment=settings, out=out) as asking:
        assert asking.process.wait(90) == 0, asking.said
    return json.loads(out.read_text())


def test_once_ends_with_everything_delivered(tmp_path: Path) -> None:
    """Every notification is in a final delivery, every sent one in the inbox, once."""
    ran = once(tmp_path, "--notifications", "300", "--seed", "3", "--json")

    told = ran.json
    assert ran.status == 0, ran.err
    assert (told["notifications"], told["claimed"]) == (300, 300)
    assert set(told["deliveries"]) <= {"sent", "skipped", "suppressed"}
    assert told["mails_received"] == told["deliveries"]["sent"] > 20
    assert (told["lost"], told["doubled"], told["duplicate_message_ids"]) == (0, 0, 0)
    assert (told["ok"], told["in_time"], told["seed"]) == (True, True, 3)
    assert told["seconds"] > 0


def test_once_tells_people_the_same(tmp_path: Path) -> None:
    """Without `--json` there is a summary, and on stderr what is being done."""
    ran = once(tmp_path, "--notifications", "20")

    assert ran.status == 0
    assert "Notifications      20, claimed 20" in ran.out
    assert "Lost               0" in ran.out
    assert "Making 20 notifications with seed" in ran.err


def test_once_says_clearly_that_the_time_was_up(tmp_path: Path) -> None:
    """What is not final at the deadline counts as lost, and the exit code is 1."""
    ran = once(tmp_path, "--notifications", "50", "--timeout", "1ms", "--json")

    assert ran.status == 1
    assert (ran.json["ok"], ran.json["in_time"]) == (False, False)
    assert ran.json["lost"] > 0
    assert "The time was up" in ran.err


def test_the_demo_keeps_away_from_what_is_set(tmp_path: Path) -> None:
    """A database, relay or file that the environment names is not touched, and that is said."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        ran = once(
            tmp_path,
            *("--notifications", "20"),
            database_url=f"postgresql://x@127.0.0.1:{port}/x",
            smtp_url=f"smtp://127.0.0.1:{port}",
            settings_file="/nowhere",
        )
        listener.settimeout(0.1)
        with pytest.raises(TimeoutError):
            listener.accept()

    assert ran.status == 0, ran.err
    for name in ("DATABASE_URL", "SMTP_URL", "SETTINGS_FILE"):
        assert f"PIPELINE_{name} is set" in ran.err


def test_a_worker_that_is_killed_on_the_way_loses_nothing(tmp_path: Path) -> None:
    """Its supervisor starts another one, and the demo ends well."""
    out = tmp_path / "out"
    with running(
        tmp_path / "err",
        *("demo", "--once", "--notifications", "3000", "--json"),
        environment=environment(),
        out=out,
    ) as demo:
        demo.wait_for("Making 3,000 notifications")
        worker = wait_until(lambda: working(demo.pid), 20)
        os.kill(worker[-1], signal.SIGKILL)
        assert demo.process.wait(200) == 0, demo.said

    assert json.loads(out.read_text())["lost"] == 0


def running_below(pid: int, word: bytes) -> list[int]:
    """The processes below this one whose command line has this word.

    A process that has only just been started has no command line yet.
    """
    found = []
    for child in descendants(pid):
        with contextlib.suppress(OSError):
            if word in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
                found.append(child)
    return found


def working(pid: int) -> list[int]:
    """The processes that Dramatiq runs workers in, below this one."""
    found = running_below(pid, b"pipeline.worker")
    return found if len(found) > 1 else []


def test_a_scheduler_that_is_gone_ends_the_demo(tmp_path: Path) -> None:
    """When a process ends that should not, it is named, and everything else is stopped."""
    with running(
        tmp_path / "err",
        *("demo", "--once", "--notifications", "100000"),
        environment=environment(),
    ) as demo:
        demo.wait_for("Making 100,000 notifications")
        (scheduler,) = wait_until(lambda: running_below(demo.pid, b"scheduler"), 60)
        children = descendants(demo.pid)
        os.kill(scheduler, signal.SIGKILL)

        assert demo.process.wait(120) == 1
        assert "the scheduler ended with status -9" in demo.said
        assert [pid for pid in children if is_alive(pid)] == []


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_demo_shows_mail_until_it_is_stopped(
    data: Path, tmp_path: Path, signum: signal.Signals
) -> None:
    """Mail is in the inbox within seconds; a signal ends all of it, and leaves nothing running."""
    settings = environment(data_dir=data)
    with running(tmp_path / "said", "demo", "--rate", "5", environment=settings) as demo:
        address = inbox_of(demo)
        wait_until(lambda: mails(address)["message_count"] >= 3, 20)
        now = status(tmp_path, settings)
        children = descendants(demo.pid)

        assert demo.stop(signum) == 0, demo.said

    assert now["deliveries"]["sent"] >= 3
    assert len(now["schedulers"]) == len(now["workers"]) == 1
    assert len(children) >= 4
    assert [pid for pid in children if is_alive(pid)] == []
    assert "nothing is left running" in demo.said
    with pytest.raises(OSError, match="refused"):
        mails(address)
    assert not (data / "postgres" / "data" / "postmaster.pid").exists()


def test_a_demo_that_is_killed_takes_everything_with_it(data: Path, tmp_path: Path) -> None:
    """After SIGKILL its processes die, and the database stops soon after."""
    settings = environment(data_dir=data)
    with running(tmp_path / "said", "demo", environment=settings) as demo:
        inbox_of(demo)
        children = descendants(demo.pid)
        demo.kill()

    wait_until(lambda: not any(map(is_alive, children)), 20)
    wait_until(lambda: not (data / "postgres" / "data" / "postmaster.pid").exists(), 20)


def test_a_second_demo_is_refused(data: Path, tmp_path: Path) -> None:
    """Two on one database would send each other's mail: the second says what to do."""
    settings = environment(data_dir=data)
    with running(tmp_path / "first", "demo", environment=settings) as first:
        address = inbox_of(first)
        wait_until(lambda: mails(address)["message_count"], 20)
        with running(tmp_path / "second", "demo", environment=settings) as second:
            assert second.process.wait(90) == 1

        assert "PIPELINE_DATA_DIR" in second.said
        assert first.stop() == 0


def test_a_port_that_is_taken_is_named(data: Path, tmp_path: Path) -> None:
    """A port that was asked for and can't be had ends the demo; else it takes another one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        settings = environment(data_dir=data)
        options = ("--http-port", port, "--smtp-port", port)
        with running(tmp_path / "said", "demo", *options, environment=settings) as demo:
            assert demo.process.wait(90) == 1

    assert f"127.0.0.1:{port}" in demo.said
    assert "Traceback" not in demo.said


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--notifications", "5"), "--notifications"),
        (("--json",), "--json"),
        (("--timeout", "5s"), "--timeout"),
        (("--once", "--rate", "5"), "--rate"),
        (("--once", "--timeout", "soon"), "--timeout"),
        (("--once", "--notifications", "0"), "--notifications"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: tuple[str, ...], named: str) -> None:
    """An option that would do nothing is an error, not ignored."""
    ran = run("demo", *options)

    assert ran.status == 2
    assert named in ran.err


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_a_missing_extra_is_named(missing: str) -> None:
    """Without what the extra brings the demo says which extra that is, and stops what it began."""
    script = (
        "import sys; from pipeline.cli import main; sys.modules[sys.argv[1]] = None;"
        " sys.exit(main(['demo', '--once', '--notifications', '5']))"
    )

    done = subprocess.run(
        [sys.executable, "-c", script, missing],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 1
    assert "dramatiq-email-pipeline[demo]" in done.stderr
    assert "Traceback" not in done.stderr
