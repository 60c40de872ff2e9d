"""One server for many processes, which come and go and are killed."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from pipeline.embedded import EmbeddedPostgres
from tests.support.postgres import execute
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]

#: Uses the shared server until its input ends, and then leaves by the usual way.
USER = """
import sys
from pipeline.embedded import embedded_url
print(embedded_url(), flush=True)
sys.stdin.read()
"""

#: As above, but what uses the server at last is a forked child that ends without a word.
FORKING_USER = """
import os, sys
from pipeline.embedded import embedded_url
print(embedded_url(), flush=True)
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
"""


class User:
    """A process that uses the shared server of a data folder."""

    def __init__(self, data: Path, code: str = USER) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PIPELINE_DATA_DIR": str(data)},
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._input: IO[str] = self.process.stdin
        self._output: IO[str] = self.process.stdout

    def url(self) -> str:
        """The address that it was given, as soon as it has one."""
        assert select.select([self._output], [], [], 60)[0], "no address within 60 s"
        url = self._output.readline().strip()
        assert url, f"it ended with {self.process.wait(90)}"
        return url

    def leave(self) -> None:
        self._input.close()
        assert self.process.wait(90) == 0

    def kill(self) -> None:
        self.process.kill()
        assert self.process.wait(90) == -signal.SIGKILL


@pytest.fixture
def data() -> Iterator[Path]:
    """A folder for data that other users may enter, with no server on it in the end."""
    path = Path(tempfile.mkdtemp(prefix="pipeline-test-"))
    path.chmod(0o755)
    yield path
    wait_until(lambda: server_on(path).stop_if_unused(), message="the last user to be gone")
    shutil.rmtree(path)


def server_on(data: Path) -> EmbeddedPostgres:
    return EmbeddedPostgres(data / "postgres")


def test_processes_that_start_at_once_get_one_server(data: Path) -> None:
    """Of many that find no data folder one makes it and starts a server; all get its address."""
    users = [User(data) for _ in range(4)]

    urls = {user.url() for user in users}

    [url] = urls
    assert execute(url, "SELECT current_database()") == [("pipeline",)]
    for user in users:
        user.leave()
    assert server_on(data).pid is None


def test_the_server_runs_until_the_last_process_has_left(data: Path) -> None:
    """The one that started it may leave first."""
    starter = User(data)
    url = starter.url()
    joiner = User(data)
    assert joiner.url() == url
    pid = server_on(data).pid

    starter.leave()
    assert server_on(data).pid == pid
    assert execute(url, "SELECT 1") == [(1,)]

    joiner.leave()
    assert server_on(data).pid is None


def test_a_killed_process_does_not_count_as_a_user(data: Path) -> None:
    """The next to leave stops the server, whoever was killed before."""
    killed, other = User(data), User(data)
    assert killed.url() == other.url()

    killed.kill()
    other.leave()

    assert server_on(data).pid is None


def test_the_server_stops_when_its_only_user_is_killed(data: Path) -> None:
    """Nobody is left to stop it, and all the same it doesn't run for ever."""
    user = User(data)
    user.url()
    assert server_on(data).pid is not None

    user.kill()

    wait_until(lambda: server_on(data).pid is None, message="the server to be stopped")


def test_a_forked_child_keeps_the_server(data: Path) -> None:
    """A worker that was forked by the process that started the server still needs it."""
    parent = User(data, FORKING_USER)
    url = parent.url()
    assert parent.process.wait(90) == 0

    assert execute(url, "SELECT 1") == [(1,)]

    parent._input.close()
    wait_until(lambda: server_on(data).pid is None, message="the server to be stopped")


def test_a_server_that_was_killed_is_there_for_the_next_process(data: Path) -> None:
    """A process that comes after a crash of the server starts it again, for everybody."""
    first = User(data)
    url = first.url()
    execute(url, "CREATE TABLE kept AS SELECT 'still here' AS text")
    pid = server_on(data).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: server_on(data).pid is None, message="the server to be dead")

    second = User(data)

    assert second.url() == url
    assert execute(url, "SELECT text FROM kept") == [("still here",)]
    second.leave()
    first.leave()
    assert server_on(data).pid is None


#: Starts and leaves a temporary server, again and again.
COMER_AND_GOER = """
import sys
from pipeline.embedded import EmbeddedPostgres
for _ in range(4):
    with EmbeddedPostgres(sys.argv[1], temporary=True, fsync=False) as server:
        server.create_database("mine")
"""


def test_a_temporary_folder_may_go_while_another_process_comes(data: Path) -> None:
    """Of processes that come and go, each has a server, and none is left with the folder."""
    folder = data / "temporary"
    comers = [
        subprocess.Popen([sys.executable, "-c", COMER_AND_GOER, folder], cwd=ROOT) for _ in range(3)
    ]

    assert [comer.wait(100) for comer in comers] == [0, 0, 0]
    assert not folder.exists()
