"""The parts that tests of all kinds stand on."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest
from hypothesis import HealthCheck, settings
from psycopg2 import extensions

from pipeline.embedded import EmbeddedPostgres
from tests.support.installation import Installation
from tests.support.postgres import fresh_database, make_template
from tests.support.smtp_server import ScriptedServer

# The same examples in every run, however busy the machine is. `HYPOTHESIS_PROFILE=explore` looks
# for new ones.
settings.register_profile(
    "steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


@pytest.fixture(scope="session", autouse=True)
def _no_settings_from_outside() -> None:
    """Keep the developer's own settings away from the tests."""
    for name in [name for name in os.environ if name.startswith("PIPELINE_")]:
        del os.environ[name]


@pytest.fixture(autouse=True)
def _no_global_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test find the global broker of another one that ran before it."""
    monkeypatch.setattr("dramatiq.broker.global_broker", None)


@pytest.fixture(params=["one by one", "at once"])
def commands(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How SMTP servers of the test take commands: one at a time, or several (PIPELINING)."""
    if request.param == "at once":
        offered = [*ScriptedServer.default_extensions, "PIPELINING"]
        monkeypatch.setattr(ScriptedServer, "default_extensions", offered)
    return str(request.param)


@pytest.fixture(scope="session")
def postgres(testrun_uid: str) -> Iterator[EmbeddedPostgres]:
    """A Postgres that all processes of a test run share, gone with the last of them.

    It would lose data if the machine went down: tests of that start one of their own. So do
    those that stop or kill it.
    """
    folder = Path(tempfile.gettempdir(), f"pipeline-tests-{testrun_uid[:12]}")
    with EmbeddedPostgres(folder, fsync=False, max_connections=300, temporary=True) as server:
        yield server


@pytest.fixture(scope="session")
def _template(postgres: EmbeddedPostgres) -> None:
    make_template(postgres)


@pytest.fixture
def database_url(postgres: EmbeddedPostgres, _template: None) -> Iterator[str]:
    """The address of a database of the test's own, with everything that `init` makes."""
    with fresh_database(postgres) as url:
        yield url


@pytest.fixture
def empty_database_url(postgres: EmbeddedPostgres) -> Iterator[str]:
    """The address of a database of the test's own, with nothing in it."""
    with fresh_database(postgres, "template1") as url:
        yield url


@pytest.fixture
def connection(database_url: str) -> Iterator[extensions.connection]:
    """A psycopg2 connection to `database_url`, not in autocommit mode."""
    with closing(psycopg2.connect(database_url)) as opened:
        yield opened


@pytest.fixture
def free_port() -> int:
    """A TCP port on 127.0.0.1 that nothing listens on, at least for the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def installation(database_url: str) -> Iterator[Installation]:
    """A pipeline in a database of the test's own, driven in the test's process."""
    opened = Installation(database_url)
    yield opened
    opened.close()
