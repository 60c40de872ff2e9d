"""Runs the inbox: one thread with one event loop, which serves SMTP and the page."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Self

import uvicorn

from pipeline.inbox.mailbox import Mailbox, ReceivedMail
from pipeline.inbox.page import inbox_page
from pipeline.inbox.receiving import ReceivingProtocol

__all__ = ["Inbox"]

#: Seconds that `stop` waits for the thread.
STOP_TIMEOUT = 10.0


class Inbox:
    """A development inbox; a context manager, or `start()` and `stop()`.

    Parameters:
      smtp_port, http_port: 0 for any free one.
      host: the address of this machine to listen on.
      keep_count: how many of the newest mails are kept; all are counted.
    """

    def __init__(
        self,
        smtp_port: int = 0,
        http_port: int = 0,
        host: str = "127.0.0.1",
        *,
        keep_count: int = 5_000,
    ) -> None:
        self.host = host
        self.smtp_port = smtp_port
        self.http_port = http_port
        self.mailbox = Mailbox(keep_count=keep_count)
        self._thread: threading.Thread | None = None
        self._http: uvicorn.Server | None = None

    def start(self) -> Self:
        """Listens, and returns when both ports answer.

        Raises:
          OSError: a port can't be had; the message names it.
          RuntimeError: it is running already.
        """
        if self._thread is not None:
            raise RuntimeError("the inbox is running already")
        with contextlib.ExitStack() as undone:
            smtp = undone.enter_context(_listen(self.host, self.smtp_port, "smtp_port"))
            http = undone.enter_context(_listen(self.host, self.http_port, "http_port"))
            undone.pop_all()
        self.smtp_port = smtp.getsockname()[1]
        self.http_port = http.getsockname()[1]
        self._http = uvicorn.Server(
            uvicorn.Config(
                inbox_page(self.mailbox, host=self.host, smtp_url=self.smtp_url),
                loop="asyncio",
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=1,
            )
        )
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(smtp, http)), name="pipeline-inbox", daemon=True
        )
        self._thread.start()
        return self

    async def _serve(self, smtp: socket.socket, http: socket.socket) -> None:
        assert self._http is not None
        loop = asyncio.get_running_loop()
        # A small backlog would turn many senders that come at once away.
        server = await loop.create_server(
            lambda: ReceivingProtocol(self.mailbox), sock=smtp, backlog=512
        )
        try:
            await self._http.serve(sockets=[http])
        finally:
            # Connections that are still open end with the loop.
            server.close()

    def stop(self) -> None:
        """Stops both; the mails stay readable here. Does nothing if it isn't running."""
        thread, self._thread = self._thread, None
        if thread is None or self._http is None:
            return
        self._http.should_exit = True
        thread.join(STOP_TIMEOUT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def smtp_url(self) -> str:
        """For `PIPELINE_SMTP_URL`."""
        return f"smtp://{_in_url(self.host)}:{self.smtp_port}"

    @property
    def http_url(self) -> str:
        """The page's address, to open in a browser."""
        return f"http://{_in_url(self.host)}:{self.http_port}/"

    @property
    def message_count(self) -> int:
        """All mails that were ever taken."""
        return self.mailbox.message_count

    def messages(self) -> list[ReceivedMail]:
        """The newest mails, oldest first."""
        return self.mailbox.messages()

    def duplicate_ids(self) -> dict[str, int]:
        """Every `Message-ID` that came more than once, and how often."""
        return self.mailbox.duplicate_ids()


def _listen(host: str, port: int, name: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        # Both ports answer from here on: what comes early waits in the backlog.
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise OSError(
            error.errno, f"the inbox can't listen on {host}:{port} ({name}): {error.strerror}"
        ) from error


def _in_url(host: str) -> str:
    # An address for "everywhere" can't be connected to by every system.
    known = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - recognised, not used
    return known.get(host, f"[{host}]" if ":" in host else host)
