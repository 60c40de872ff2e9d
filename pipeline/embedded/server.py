"""A server that any number of processes share."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from . import locks
from .accounts import Account
from .cluster import DEFAULT_PORT, SUPERUSER, Cluster
from .errors import EmbeddedPostgresError
from .postmaster import Postmaster


class EmbeddedPostgres:
    """A Postgres server on a folder, shared with every other process that names the same folder.

    The first one to start it decides on its settings. It stops when the last one has left, be it
    by `stop`, by leaving the `with` block, or by dying.

    It listens on a socket in a private folder and lets in whoever may go there: the account that
    runs it, and root.

    Parameters:
      folder: where the data lives; made if missing. As root its parents must be open to others.
      fsync: False makes it fast and lets a crash of the machine destroy the data. A crash of
        the server still loses nothing.
      max_connections: of all processes together.
      tcp_port: listen on this port of 127.0.0.1 too, where anybody on this machine may come in.
      temporary: the last one to leave removes the folder.
      settings: further settings of `postgresql.conf`.
      binaries: a folder with `initdb`, `pg_ctl` and `postgres`, instead of looking for one.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        fsync: bool = True,
        max_connections: int = 100,
        tcp_port: int | None = None,
        temporary: bool = False,
        settings: Mapping[str, str] | None = None,
        binaries: Path | None = None,
    ) -> None:
        self.folder = Path(folder).expanduser().absolute()
        self.temporary = temporary
        self._cluster = Cluster(self.folder, binaries)
        self._port = tcp_port or DEFAULT_PORT
        self._settings = {"max_connections": str(max_connections)}
        if not fsync:
            self._settings |= {"fsync": "off", "full_page_writes": "off"}
        if tcp_port is not None:
            self._settings["listen_addresses"] = "127.0.0.1"
        self._settings |= settings or {}
        self._joined: int | None = None
        self._server: Postmaster | None = None

    def start(self) -> Self:
        """Start the server or join the one that runs, and make the database `pipeline`.

        Can be called again at any time, to be sure that the server runs.

        Raises:
          EmbeddedPostgresError: the text says why and what to do.
        """
        with locks.starting(self.folder, self._make_folder):
            if self._joined is None:
                self._joined = locks.use(self.folder)
            try:
                self._server = self._cluster.running
                if self._server is None or not self._server.answers:
                    self._server = self._cluster.start(self._settings, self._port)
                    self._guard(self._server)
                self.create_database("pipeline")
            except BaseException:
                self._leave()
                with contextlib.suppress(EmbeddedPostgresError):
                    self._stop_if_unused()
                raise
        return self

    def stop(self) -> bool:
        """Leave the server, and return whether nobody was left, so that it has been stopped."""
        if self._joined is None:
            return False
        try:
            with locks.starting(self.folder):
                self._leave()
                return self._stop_if_unused()
        except FileNotFoundError:  # somebody removed the folder
            self._leave()
            return False

    def crash(self) -> None:
        """Stop the server as a crash does (`pg_ctl stop -m immediate`), and start it again.

        Everybody's connections are lost, and what was not committed.

        Raises:
          EmbeddedPostgresError: it doesn't start again.
        """
        with locks.starting(self.folder):
            self._cluster.stop("immediate")
        self.start()

    def stop_if_unused(self) -> bool:
        """Stop the server if no process uses it, and return whether it is stopped."""
        try:
            with locks.starting(self.folder):
                return self._stop_if_unused()
        except FileNotFoundError:
            return True

    @property
    def pid(self) -> int | None:
        """The process id of the server, None if it doesn't run."""
        server = self._cluster.running
        return None if server is None else server.pid

    @property
    def log(self) -> Path:
        """The file that the server logs to."""
        return self._cluster.log

    @property
    def binaries(self) -> Path:
        """The folder of the programs that belong to the server: `pg_ctl` and perhaps `psql`."""
        return self._cluster.binaries(Account.current()).folder

    def dsn(self, database: str = "pipeline") -> str:
        """Return the address of a database, for psycopg2 and everything else that uses libpq.

        Raises:
          EmbeddedPostgresError: the server has not been started.
        """
        if self._server is None:
            raise EmbeddedPostgresError("the embedded Postgres has not been started")
        host, port = quote(self._server.socket_folder, safe=""), self._server.port
        return f"postgresql://{SUPERUSER}@/{quote(database)}?host={host}&port={port}"

    def create_database(self, name: str, template: str = "template1") -> None:
        """Make a database unless there is one of that name, as a copy of the template."""
        # Here, so that the guard, which needs no database, needs no psycopg2 either.
        import psycopg2
        from psycopg2 import errors, sql

        connection = psycopg2.connect(self.dsn("postgres"))
        connection.autocommit = True
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT FROM pg_database WHERE datname = %s", (name,))
                if cursor.fetchone() is None:
                    cursor.execute(
                        sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
                            sql.Identifier(name), sql.Identifier(template)
                        )
                    )
        except (errors.DuplicateDatabase, errors.UniqueViolation):
            pass  # another process was faster
        finally:
            connection.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _make_folder(self) -> None:
        try:
            for folder in reversed([self.folder, *self.folder.parents]):
                if not folder.exists():
                    folder.mkdir(exist_ok=True)
                    # As root the server runs as somebody else, who has to get through.
                    folder.chmod(0o755 if os.geteuid() == 0 else 0o700)
            if not os.access(self.folder, os.W_OK | os.X_OK):
                raise PermissionError("it is not yours to write to")
        except OSError as error:
            raise EmbeddedPostgresError(
                f"can't keep a database in {self.folder} ({error.strerror or error}): set "
                "PIPELINE_DATA_DIR to another folder"
            ) from error

    def _leave(self) -> None:
        if self._joined is not None:
            os.close(self._joined)
            self._joined = None

    def _stop_if_unused(self) -> bool:
        if not locks.is_unused(self.folder):
            return False
        self._cluster.stop("immediate" if self.temporary else "fast")
        if self.temporary:
            shutil.rmtree(self.folder, ignore_errors=True)
        return True

    def _guard(self, server: Postmaster) -> None:
        """Leave a process behind that stops the server if its users die without a word."""
        from .guard import command  # which needs this module

        guarding = command(self.folder, self.binaries, server.pid, temporary=self.temporary)
        # Without one, the next process to use the folder stops the server when it leaves.
        with contextlib.suppress(OSError):
            Account.current().run(sys.executable, *guarding)
