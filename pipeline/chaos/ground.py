"""The database that a chaos run is held on: an embedded one, or a new one beside the user's."""

from __future__ import annotations

import secrets
import socket
import subprocess
from contextlib import closing, suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import quote, urlencode

import psycopg2
from psycopg2 import sql
from psycopg2.extensions import parse_dsn

from pipeline.database import connect
from pipeline.embedded import EmbeddedPostgres

from . import sweeper

#: Of a new database on the user's own server.
PREFIX = "pipeline_chaos_"


class Ground(Protocol):
    """Where a run is held.

    Attributes:
      may_restart: The server is ours alone.
    """

    may_restart: bool

    @property
    def url(self) -> str:
        """The database, reached as it is."""

    def start(self) -> None:
        """Make it."""

    def connect(self) -> socket.socket:
        """A connection to the server, for the proxy."""

    def url_through(self, port: int) -> str:
        """The database, reached through a port of this machine."""

    def restart(self) -> None:
        """Stop the server as if it had crashed, and start it again."""

    def close(self) -> None:
        """Remove what `start` has made."""


class EmbeddedGround:
    """A server of the run's own, in a folder that goes with it."""

    may_restart = True

    def __init__(self, folder: Path) -> None:
        self._server = EmbeddedPostgres(folder, temporary=True, max_connections=200)
        self._url = ""

    @property
    def url(self) -> str:
        """The database, reached as it is."""
        return self._url

    def start(self) -> None:
        """Start the server."""
        self._server.start()
        # It stays the same when the server is started again.
        self._url = self._server.dsn()
        self._address = _address(self._url)

    def connect(self) -> socket.socket:
        """A connection to its socket."""
        return _connect(self._address)

    def url_through(self, port: int) -> str:
        """The database, reached through a port of this machine."""
        return _url({**parse_dsn(self.url), "host": "127.0.0.1", "port": str(port)})

    def restart(self) -> None:
        """`pg_ctl restart -m immediate`."""
        self._server.crash()

    def close(self) -> None:
        """Stop it, and remove the folder."""
        self._server.stop()


class ScratchGround:
    """A new database on a server that others use: nothing else on it is touched.

    Parameters:
      url: Any database of the server; its role must be allowed to make databases.
    """

    may_restart = False

    def __init__(self, url: str) -> None:
        self._beside = url
        self.name = PREFIX + secrets.token_hex(4)
        self._sweeper: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The new database."""
        return _url({**parse_dsn(self._beside), "dbname": self.name})

    def start(self) -> None:
        """Make the database.

        Raises:
          psycopg2.Error: The server is away, or the role may not make databases.
        """
        with closing(connect(self._beside)) as connection, connection.cursor() as cursor:
            cursor.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(self.name)))
        self._sweeper = sweeper.watch(self._beside, self.name)
        self._address = _address(self._beside)

    def connect(self) -> socket.socket:
        """A connection to the server."""
        return _connect(self._address)

    def url_through(self, port: int) -> str:
        """The new database, reached through a port; TLS goes by the server's own name still."""
        parts = parse_dsn(self.url)
        if parts.get("host", "/").startswith("/"):
            parts["host"] = "127.0.0.1"
        return _url({**parts, "hostaddr": "127.0.0.1", "port": str(port)})

    def restart(self) -> None:
        """Never: others use it."""
        raise AssertionError("this server is not ours to restart")

    def close(self) -> None:
        """Drop the database; the sweeper goes on trying if that can't be done now."""
        if self._sweeper is None:
            return
        with suppress(psycopg2.Error):
            sweeper.drop(self._beside, self.name)
            self._sweeper.kill()
            self._sweeper.wait()
        if self._sweeper.stdin is not None:
            self._sweeper.stdin.close()


def _address(url: str) -> tuple[str, int]:
    """Host or socket folder, and port, that libpq takes."""
    with closing(connect(url)) as asking:
        parameters = asking.get_dsn_parameters()
    host, port = parameters.get("host") or "", int(parameters.get("port") or 5432)
    return parameters.get("hostaddr") or host or "/var/run/postgresql", port


def _connect(address: tuple[str, int]) -> socket.socket:
    host, port = address
    if host.startswith("/"):
        connected = socket.socket(socket.AF_UNIX)
        try:
            connected.connect(f"{host}/.s.PGSQL.{port}")
        except OSError:
            connected.close()
            raise
        return connected
    return socket.create_connection(address, 10)


def _url(parts: dict[str, str]) -> str:
    rest = {name: value for name, value in parts.items() if name not in ("dbname", "password")}
    user = quote(rest.pop("user", ""), safe="")
    password = parts.get("password")
    secret = f":{quote(password, safe='')}" if password else ""
    at = f"{user}{secret}@" if user or secret else ""
    return f"postgresql://{at}/{quote(parts.get('dbname', ''), safe='')}?{urlencode(rest)}"
