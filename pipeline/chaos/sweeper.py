"""Drops a run's database on somebody's server, however the run ends: even by SIGKILL.

A file run as a program, in a session of its own. It waits until the run has closed the pipe that
is its standard input, as every end of a process does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import closing, suppress

import psycopg2
from psycopg2 import sql

from pipeline.database import connect

#: The environment's variable with the URL of a database beside, which may hold a password.
URL = "PIPELINE_CHAOS_BESIDE"

#: Seconds that the server gets to be there again, and seconds between two tries.
PATIENCE, PAUSE = 120.0, 1.0


def drop(beside: str, name: str) -> None:
    """Drop the database, and end the sessions in it.

    Raises:
      psycopg2.Error: It can't be done.
    """
    with closing(connect(beside)) as connection, connection.cursor() as cursor:
        command = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
        cursor.execute(command.format(sql.Identifier(name)))


def watch(beside: str, name: str) -> subprocess.Popen[bytes]:
    """Start a sweeper; close its standard input to let it work."""
    return subprocess.Popen(
        [sys.executable, "-m", "pipeline.chaos.sweeper", name],
        env=os.environ | {URL: beside},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def main() -> None:
    """Wait for the run's end, then drop."""
    sys.stdin.buffer.read()
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with suppress(psycopg2.Error):
            drop(os.environ[URL], sys.argv[1])
            return
        time.sleep(PAUSE)


if __name__ == "__main__":
    main()
