"""Workers and schedulers say that they are there, for people who look at the status."""

from __future__ import annotations

import logging
import os
import socket
import threading

import psycopg2

from .database import connect, query, transaction

logger = logging.getLogger(__name__)

#: How often, in seconds.
INTERVAL = 10.0


def process_name() -> str:
    """`host:process id`."""
    return f"{socket.gethostname()}:{os.getpid()}"


class Presence:
    """Says that this process is there, in a thread of its own; nothing depends on it.

    Parameters:
      url: The database.
      kind: `worker` or `scheduler`.
    """

    def __init__(self, url: str, kind: str) -> None:
        self.url = url
        self.kind = kind
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="pipeline-presence", daemon=True)

    def start(self) -> None:
        """Begin to say so."""
        self._thread.start()

    def stop(self) -> None:
        """End it, and say that too."""
        self._stop.set()
        self._thread.join(timeout=5)

    def _loop(self) -> None:
        while True:
            self._say("process_seen")
            if self._stop.wait(INTERVAL):
                break
        self._say("process_gone")

    def _say(self, what: str) -> None:
        try:
            connection = connect(self.url, application_name=f"pipeline {self.kind}")
            try:
                with transaction(connection) as cursor:
                    cursor.execute(query(what), {"kind": self.kind, "name": process_name()})
            finally:
                connection.close()
        except psycopg2.Error as error:
            logger.debug("Could not say that this %s is there: %s", self.kind, error)
