"""The one server that everything on a machine uses unless it is told of another Postgres."""

from __future__ import annotations

import atexit
import os
import threading
from pathlib import Path

from .accounts import server_account
from .errors import EmbeddedPostgresError
from .server import EmbeddedPostgres

_NAME = "dramatiq-email-pipeline"
#: Where root's data goes if the home is closed to the account that has to run the server.
_ROOT_FOLDER = Path("/var/lib", _NAME)

_lock = threading.Lock()
_servers: dict[Path, EmbeddedPostgres] = {}


def default_folder() -> Path:
    """Return the folder for data: `PIPELINE_DATA_DIR`, else one below the XDG data home.

    Raises:
      EmbeddedPostgresError: neither is set and the user has no home.
    """
    if chosen := os.environ.get("PIPELINE_DATA_DIR"):
        return Path(chosen).expanduser().absolute()
    data_home = Path(os.environ.get("XDG_DATA_HOME", ""))
    if not data_home.is_absolute():  # the XDG specification: then it is to be ignored
        try:
            data_home = Path.home() / ".local" / "share"
        except RuntimeError as error:
            raise EmbeddedPostgresError(
                "this user has no home to keep a database in: set PIPELINE_DATA_DIR to a folder"
            ) from error
    folder = data_home / _NAME
    if os.geteuid() == 0 and not server_account(folder / "postgres" / "data").can_enter(folder):
        return _ROOT_FOLDER
    return folder


def embedded_url(database: str = "pipeline") -> str:
    """Return the address of a database on the shared server, starting or joining it.

    The server runs at least until this process ends. To be called once in a process, or again to
    be sure that it still runs.

    Raises:
      EmbeddedPostgresError: the text says why and what to do.
    """
    folder = default_folder() / "postgres"
    with _lock:
        server = _servers.get(folder)
        if server is None:
            server = EmbeddedPostgres(folder)
        server.start()
        if folder not in _servers:
            _servers[folder] = server
            atexit.register(server.stop)
        server.create_database(database)
        return server.dsn(database)
