"""A data folder: making it, and starting and stopping a server on it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from .accounts import Account, server_account
from .binaries import Binaries, binaries_in, find_binaries, make_runnable
from .errors import EmbeddedPostgresError
from .postmaster import Postmaster, disown, read_postmaster

#: The port names the socket, even where nothing listens on TCP.
DEFAULT_PORT = 5432
SUPERUSER = "postgres"
#: Linux allows 107 bytes for the path of a socket, macOS 103.
_LONGEST_SOCKET_PATH = 100
_LONGEST_LOG = 5_000_000
#: Seconds that a server gets to start (it may have a crash to recover from) and to stop.
_START_TIMEOUT = 120
_STOP_TIMEOUT = 30


class Cluster:
    """One data folder. Whoever calls its methods holds `locks.starting`.

    Parameters:
      folder: holds `data`, with the server's log in it, and copied binaries if need be.
      binaries: a folder with `initdb`, `pg_ctl` and `postgres`; looked for if None.
    """

    def __init__(self, folder: Path, binaries: Path | None = None) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.log = self.data / "server.log"
        self._binaries = binaries

    @property
    def running(self) -> Postmaster | None:
        """The live server, None if there is none."""
        server = read_postmaster(self.data)
        return server if server is not None and server.is_alive else None

    def start(self, settings: Mapping[str, str], port: int = DEFAULT_PORT) -> Postmaster:
        """Start the server, making the data folder first if there is none.

        Raises:
          EmbeddedPostgresError: it doesn't come up.
        """
        account = server_account(self.data)
        binaries = self.binaries(account)
        if not self.data.exists():
            self._initialise(account, binaries, sync=settings.get("fsync") != "off")
        self._clear_remains()
        if (server := self.running) is not None:
            return server
        _make_log(self.log, account)
        sockets = _socket_folder(self.folder, account, port)
        options = {
            "port": str(port),
            "unix_socket_directories": str(sockets),
            "unix_socket_permissions": "0700",
            "listen_addresses": "",
            "timezone": "UTC",
            "log_timezone": "UTC",
            "log_checkpoints": "off",
        } | dict(settings)
        arguments = [part for name in options for part in ("-c", f"{name}={options[name]}")]
        status, said = account.run(
            *(binaries.folder / "pg_ctl", "start", "-w", "-t", str(_START_TIMEOUT)),
            *("-D", self.data, "-l", self.log, "-o", shlex.join(arguments)),
            timeout=_START_TIMEOUT + 10,
        )
        server = self.running
        if status != 0 or server is None:
            _remove_if_empty(sockets)
            raise EmbeddedPostgresError(
                f"the embedded Postgres in {self.data} did not start: {said}\n{self._log_end()}"
            )
        return server

    def stop(self, mode: str = "fast") -> None:
        """Stop the server if one is running: `fast` or `immediate`, as pg_ctl means them."""
        server = self.running
        if server is None:
            return
        account = server_account(self.data)
        pg_ctl = self.binaries(account).folder / "pg_ctl"
        for how in (mode, "immediate"):
            status, said = account.run(
                *(pg_ctl, "stop", "-w", "-t", str(_STOP_TIMEOUT), "-D", self.data, "-m", how),
                timeout=_STOP_TIMEOUT + 10,
            )
            if status == 0 or self.running is None:
                _remove_if_empty(Path(server.socket_folder))
                return
        raise EmbeddedPostgresError(f"the embedded Postgres in {self.data} does not stop: {said}")

    def binaries(self, account: Account) -> Binaries:
        """Find binaries that the account can run and that fit the data.

        Raises:
          EmbeddedPostgresError: there are none, or the data is another version's.
        """
        version_file = self.data / "PG_VERSION"
        major = int(version_file.read_text()) if version_file.exists() else None
        binaries = binaries_in(self._binaries) if self._binaries else find_binaries(major)
        if major is not None and binaries.major != major:
            raise EmbeddedPostgresError(
                f"the database in {self.data} was made by Postgres {major}, and this is Postgres "
                f"{binaries.version}, which can't read it: install Postgres {major}, move the "
                f"data with pg_dump, or remove {self.folder} to start with an empty database"
            )
        binaries = make_runnable(binaries, account, self.folder / "binaries")
        self._binaries = binaries.folder
        return binaries

    def _initialise(self, account: Account, binaries: Binaries, *, sync: bool) -> None:
        # Under another name until it is whole, so that a killed initdb leaves no half a cluster.
        unfinished = self.folder / "data.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        if not account.is_ours:
            os.chown(unfinished, account.uid, account.gid)
            if not account.can_enter(unfinished):
                raise EmbeddedPostgresError(
                    f"Postgres has to run as {account}, who may not enter {self.folder}: set "
                    "PIPELINE_DATA_DIR to a folder whose parents are open to everybody"
                )
        if binaries.major >= 17:
            locales: list[tuple[str, ...]] = [
                ("--locale-provider=builtin", "--builtin-locale=C.UTF-8")
            ]
        else:
            # The system's C.UTF-8, if it has one: the letters of plain C are those of ASCII.
            locales = [("--lc-ctype=C.UTF-8",), ()]
        for locale in locales:
            status, said = account.run(
                *(binaries.folder / "initdb", "-D", unfinished, "-U", SUPERUSER, "--auth=trust"),
                *("--encoding=UTF8", "--locale=C", *locale, *([] if sync else ["--no-sync"])),
            )
            if status == 0:
                break
        else:
            raise EmbeddedPostgresError(f"can't make a database in {self.folder}: {said}")
        unfinished.rename(self.data)

    def _clear_remains(self) -> None:
        """See to a server that the data folder names and that doesn't serve."""
        # Whoever started it may have been killed while it recovers, or while it shuts down.
        deadline = time.monotonic() + _STOP_TIMEOUT
        while (server := self.running) is not None and time.monotonic() < deadline:
            if server.answers:
                return
            if server.status == "ready" and not server.socket_path.exists():
                break
            time.sleep(0.05)
        if server is not None:
            # Its socket was swept away, or it hangs: nobody can reach it any more.
            self.stop()
        elif (dead := read_postmaster(self.data)) is not None:
            disown(dead)

    def _log_end(self) -> str:
        try:
            return self.log.read_text(errors="replace")[-2000:].strip()
        except OSError:
            return ""


def _make_log(log: Path, account: Account) -> None:
    if log.exists() and log.stat().st_size > _LONGEST_LOG:
        log.replace(log.with_suffix(".log.1"))
    log.touch(mode=0o600)
    if not account.is_ours:
        os.chown(log, account.uid, account.gid)


def _socket_folder(folder: Path, account: Account, port: int) -> Path:
    """Make the folder for the server's socket: short, private, and the account's.

    Raises:
      EmbeddedPostgresError: somebody else has taken its name.
    """
    name = "pipeline-pg-" + hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
    path = Path(tempfile.gettempdir(), name)
    too_long = len(os.fsencode(path / f".s.PGSQL.{port}.lock")) > _LONGEST_SOCKET_PATH
    if too_long or not re.fullmatch(r"[\w./-]+", str(path)) or not account.can_enter(path):
        path = Path("/tmp", name)  # noqa: S108 -- checked below
    try:
        path.mkdir(mode=0o700)
        if not account.is_ours:
            os.chown(path, account.uid, account.gid)
    except FileExistsError:
        pass
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != account.uid or found.st_mode & 0o077:
        raise EmbeddedPostgresError(
            f"{path} should be a folder that only {account} can use, and it is not: remove it"
        )
    return path


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()
