"""The account that the server runs under, and running programs under it."""

from __future__ import annotations

import os
import pwd
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .errors import EmbeddedPostgresError

#: Accounts that root's server may run under, in order of preference.
_UNPRIVILEGED = ("postgres", "nobody")


@dataclass(frozen=True, slots=True)
class Account:
    """Who runs the server: Postgres refuses to be run by root."""

    uid: int
    gid: int

    @classmethod
    def current(cls) -> Account:
        return cls(os.geteuid(), os.getegid())

    @property
    def is_ours(self) -> bool:
        return self.uid == os.geteuid()

    def __str__(self) -> str:
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return f"uid {self.uid}"

    def run(self, *command: str | Path, timeout: float = 120) -> tuple[int, str]:
        """Run a program to its end and return its exit status and what it wrote.

        It runs in a session of its own, so that Ctrl-C in our terminal doesn't reach it, and in
        the root folder, since ours may be closed to the account.

        Raises:
          OSError: it can't be run at all, for instance because its folder is closed.
          subprocess.TimeoutExpired: it takes more than `timeout` seconds.
        """
        # Not a pipe: a server that was started inherits it and never closes it.
        with tempfile.TemporaryFile() as output:
            status = subprocess.run(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd="/",
                env=_environment(),
                start_new_session=True,
                timeout=timeout,
                check=False,
                user=None if self.is_ours else self.uid,
                group=None if self.is_ours else self.gid,
                extra_groups=None if self.is_ours else [],
            ).returncode
            output.seek(0)
            return status, output.read().decode(errors="replace").strip()

    def can_enter(self, path: Path) -> bool:
        """Tell whether the account may use what lies in the folder, or in its nearest parent."""
        while not path.exists() and path != path.parent:
            path = path.parent
        if self.is_ours:
            return os.access(path, os.X_OK)
        try:
            return self.run("/bin/sh", "-c", 'test -x "$0"', path)[0] == 0
        except OSError:
            return False


def server_account(data: Path) -> Account:
    """Choose who runs the server of a data folder.

    Raises:
      EmbeddedPostgresError: the data belongs to somebody else, or root has no account to lend.
    """
    owner = Account(data.stat().st_uid, data.stat().st_gid) if data.exists() else None
    if os.geteuid() != 0:
        ours = Account.current()
        if owner is not None and owner.uid != ours.uid:
            raise EmbeddedPostgresError(
                f"the database in {data} belongs to {owner}, and you are {ours}: run this as "
                f"{owner}, or set PIPELINE_DATA_DIR to a folder of your own"
            )
        return ours
    if owner is not None and owner.uid != 0:
        return owner
    for name in _UNPRIVILEGED:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid)
    raise EmbeddedPostgresError(
        "Postgres refuses to run as root, and there is no account named "
        f"{' or '.join(_UNPRIVILEGED)} to run it under: add one, run this as an ordinary user, "
        "or set PIPELINE_DATABASE_URL to a Postgres that is there"
    )


def _environment() -> dict[str, str]:
    # PGDATA, PGPORT and their like would redirect our server; an odd locale would stop initdb.
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PG", "LC_")) and name not in {"LANG", "LANGUAGE"}
    }
    return kept | {"LC_ALL": "C", "TZ": "UTC"}
