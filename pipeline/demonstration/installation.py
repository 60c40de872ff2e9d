"""Everything that the demo runs: Postgres, inbox, scheduler and worker."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pipeline.database import connect, init, query, transaction
from pipeline.embedded import EmbeddedPostgres

from .services import DemoError, Service, stop_services

if TYPE_CHECKING:
    from pipeline.inbox import Inbox

#: Where the made-up tracker would be; the domain is reserved for examples.
TRACKER_URL = "https://tracker.example"
MAIL_FROM = "Tracker <notifications@tracker.example>"

#: A worker or scheduler that was seen so lately may be running.
LATELY = timedelta(minutes=1)

#: Where people expect a development inbox, if it is free there.
USUAL_SMTP_PORT = 1025
USUAL_HTTP_PORT = 8025


class Installation:
    """A whole installation on this machine, running for as long as the block lasts.

    Mail goes to its own inbox, whatever the environment says: what is made up must not get out.

    Parameters:
      folder: For the database and the logs.
      is_temporary: The folder is removed at the end.
      stack_every: Seconds between ticks.
      smtp_port, http_port: Of the inbox. None: the usual one, or any if that is taken; 0: any.
      keep_count: How many mails the inbox keeps.

    Raises:
      DemoError: From `start`, when a part can't be had.
      EmbeddedPostgresError: From `start`, when there is no Postgres to be had.
    """

    def __init__(
        self,
        folder: Path,
        *,
        is_temporary: bool = False,
        stack_every: float = 1.0,
        smtp_port: int | None = 0,
        http_port: int | None = 0,
        keep_count: int = 5000,
    ) -> None:
        self.folder = folder
        self.stack_every = stack_every
        self.smtp_port = smtp_port
        self.http_port = http_port
        self.keep_count = keep_count
        # A folder that is to go goes with its server, the logs in it too.
        postgres = folder if is_temporary else folder / "postgres"
        self._postgres = EmbeddedPostgres(postgres, temporary=is_temporary)
        self._parts = ExitStack()
        self.services: list[Service] = []
        #: At the end: nobody else was using it.
        self.is_postgres_stopped = False

    @property
    def logs(self) -> Path:
        """The folder of the logs."""
        return self.folder / "demo"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._parts.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._parts.close()

    def start(self) -> None:
        """Start all of it, in the order in which it is needed."""
        self._postgres.start()
        self._parts.callback(self._stop_postgres)
        self.database_url = self._postgres.dsn()
        with closing(connect(self.database_url)) as connection:
            init(connection)
            self._refuse_company()
        self.inbox = self._start_inbox()
        self._parts.callback(self.inbox.stop)
        self._parts.callback(lambda: stop_services(self.services))
        environment = self._environment()
        for arguments in (("scheduler",), ("worker", "--processes", "1", "--threads", "8")):
            log = self.logs / f"{arguments[0]}.log"
            self.services.append(Service(*arguments, environment=environment, log=log))

    def _stop_postgres(self) -> None:
        self.is_postgres_stopped = self._postgres.stop()

    def check(self) -> None:
        """Nothing, as long as everything runs.

        Raises:
          DemoError: A process has ended.
        """
        for service in self.services:
            service.check()

    def _environment(self) -> dict[str, str]:
        others = {
            name: value for name, value in os.environ.items() if not name.startswith("PIPELINE_")
        }
        return others | {
            "PIPELINE_DATABASE_URL": self.database_url,
            "PIPELINE_SMTP_URL": self.inbox.smtp_url,
            "PIPELINE_MAIL_FROM": MAIL_FROM,
            "PIPELINE_BASE_URL": TRACKER_URL,
            "PIPELINE_STACK_EVERY": f"{self.stack_every:g}s",
            # Whoever kills a worker to see what happens shall not have to wait for long.
            "PIPELINE_LEASE": "10s",
        }

    def _start_inbox(self) -> Inbox:
        try:
            from pipeline.inbox import Inbox
        except ImportError as error:
            raise DemoError(str(error)) from None
        try:
            return self._inbox(Inbox, USUAL_SMTP_PORT, USUAL_HTTP_PORT)
        except OSError as error:
            if self.smtp_port is not None and self.http_port is not None:
                raise DemoError(error.strerror or str(error)) from None
        try:
            return self._inbox(Inbox, 0, 0)
        except OSError as error:
            raise DemoError(error.strerror or str(error)) from None

    def _inbox(self, kind: type[Inbox], smtp_port: int, http_port: int) -> Inbox:
        return kind(
            smtp_port=smtp_port if self.smtp_port is None else self.smtp_port,
            http_port=http_port if self.http_port is None else self.http_port,
            keep_count=self.keep_count,
        ).start()

    def _refuse_company(self) -> None:
        """Others that run on this database would send our mail elsewhere, and we theirs here."""
        with closing(connect(self.database_url)) as connection, transaction(connection) as cursor:
            cursor.execute(query("status_processes"), {"within": LATELY})
            seen = cursor.fetchall()
        for kind, name, _, _ in seen:
            host, _, pid = name.rpartition(":")
            if host == socket.gethostname() and pid.isdigit() and _is_alive(int(pid)):
                raise DemoError(
                    f"a {kind} (process {pid}) is running on the embedded database already, "
                    "perhaps of another demo: stop it, or set PIPELINE_DATA_DIR to another folder"
                )


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
