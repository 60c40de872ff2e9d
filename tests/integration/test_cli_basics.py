"""What all commands have in common: help, exit codes, errors that say what to do."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.commands import ROOT, environment, run
from tests.support.postgres import execute

#: Parts that take long to load and that no help text needs.
HEAVY = (
    "apscheduler",
    "aiosmtpd",
    "dramatiq",
    "jinja2",
    "psycopg2",
    "rich",
    "starlette",
    "uvicorn",
)


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_loads_no_heavy_parts() -> None:
    """`pipeline --help` answers at once: it loads click and nothing else of size."""
    script = (
        "import json, sys\nfrom pipeline.cli import main\nmain(['--help'])\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )

    done = python("-c", script)

    loaded = set(json.loads(done.stderr))
    assert [name for name in HEAVY if name in loaded] == []
    assert "status" in done.stdout


def test_python_m_pipeline_is_the_same() -> None:
    """`python -m pipeline` runs the command line and hands its exit code on."""
    good, bad = python("-m", "pipeline", "--help"), python("-m", "pipeline", "nonsense")

    assert (good.returncode, bad.returncode) == (0, 2)
    assert good.stdout == run("--help").out
    assert "nonsense" in bad.stderr


def test_the_version_is_told() -> None:
    """`--version` names the distribution."""
    assert run("--version").out.startswith("dramatiq-email-pipeline ")


def test_no_command_shows_the_help() -> None:
    """Without a command the help is shown, and the exit code says that this was not enough."""
    ran = run()

    assert ran.status == 2
    assert "Commands:" in ran.out + ran.err


@pytest.mark.parametrize("command", ["init", "stack", "status", "worker", "scheduler"])
def test_a_bad_setting_is_named(command: str) -> None:
    """A setting that can't be used ends a command with 2, and is named with its value."""
    ran = run(command, database_url="postgresql:///x", lease="soon")

    assert ran.status == 2
    assert ran.out == ""
    assert "PIPELINE_LEASE" in ran.err
    assert "'soon'" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("command", ["init", "stack", "status", "worker", "scheduler"])
def test_a_database_that_is_away_is_told(command: str) -> None:
    """A database that can't be reached ends a command with 1, and the setting is named."""
    ran = run(command, database_url="postgresql://app:secret@127.0.0.1:1/shop")

    assert ran.status == 1
    assert "PIPELINE_DATABASE_URL" in ran.err
    assert 'can\'t be used: "127.0.0.1", port 1 failed: Connection refused.' in ran.err
    assert "secret" not in ran.err
    assert "Traceback" not in ran.err


def test_an_address_that_is_none_is_a_bad_setting() -> None:
    """A database URL that libpq can't read ends a command with 2."""
    ran = run("status", database_url="nonsense")

    assert ran.status == 2
    assert "PIPELINE_DATABASE_URL" in ran.err


@pytest.mark.parametrize("command", ["stack", "status", "worker", "scheduler"])
def test_a_database_without_the_schema_is_told(empty_database_url: str, command: str) -> None:
    """A database that nobody has prepared ends a command with 2, and says what to run."""
    ran = run(command, database_url=empty_database_url)

    assert ran.status == 2
    assert "`pipeline init`" in ran.err


@pytest.mark.parametrize("command", ["stack", "status", "worker", "scheduler"])
def test_a_database_without_the_queue_is_told(database_url: str, command: str) -> None:
    """When dramatiq-pg's table is elsewhere the settings for it are named."""
    ran = run(command, database_url=database_url, queue_schema="elsewhere")

    assert ran.status == 2
    assert "elsewhere.queue" in ran.err
    assert "PIPELINE_QUEUE_SCHEMA" in ran.err


@pytest.mark.parametrize("command", ["init", "stack", "status"])
def test_a_schema_from_the_future_is_refused(database_url: str, command: str) -> None:
    """A program that is older than the schema does not touch it."""
    execute(database_url, "INSERT INTO pipeline.schema_version (version) VALUES (999)")

    ran = run(command, database_url=database_url)

    assert ran.status == 2
    assert "999" in ran.err
    assert "newer version of the program" in ran.err


def test_an_older_schema_is_to_be_upgraded(database_url: str) -> None:
    """A database with an older version of the schema is sent to `pipeline init`."""
    execute(database_url, "UPDATE pipeline.schema_version SET version = 0")

    ran = run("status", database_url=database_url)

    assert ran.status == 2
    assert "version 0" in ran.err
    assert "`pipeline init`" in ran.err


def test_a_reader_that_has_seen_enough_is_no_error(database_url: str) -> None:
    """`pipeline … | head` ends without a traceback."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline", "status", "--json"],
        env=environment(database_url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()

    told = process.stderr.read()

    assert process.wait(90) == 1
    assert told == b""
