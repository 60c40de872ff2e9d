"""The sender against a server that others wrote."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword

from pipeline.smtp import Outcome, Relay, Scope, Session, Stage
from tests.support.certificates import server_certificate
from tests.support.smtp_client import QUICK, send


class Sink:
    """Takes messages, but none for `full@…` and no content with the word virus."""

    def __init__(self) -> None:
        self.contents: list[bytes] = []

    async def handle_RCPT(
        self, server: Any, session: Any, envelope: Any, address: str, options: Any
    ) -> str:
        if address.startswith("full@"):
            return "452 4.2.2 Mailbox full"
        envelope.rcpt_tos.append(address)
        return "250 2.1.5 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        if b"virus" in envelope.content:
            return "554 5.7.1 No"
        self.contents.append(envelope.content)
        return "250 2.0.0 OK"


def authenticate(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
    right = isinstance(data, LoginPassword) and data == LoginPassword(b"me", b"secret")
    return AuthResult(success=right)


@contextmanager
def aiosmtpd(sink: Sink, **options: Any) -> Iterator[int]:
    # It connects to its own port when it starts, so that 0 won't do.
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    controller = Controller(sink, hostname="127.0.0.1", port=port, **options)
    controller.start()
    try:
        yield port
    finally:
        controller.stop()


def encrypted() -> ssl.SSLContext:
    certificate = server_certificate()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate_file, certificate.key_file)
    return context


@pytest.mark.parametrize("login", [False, True])
def test_a_session_with_aiosmtpd_over_starttls(login: bool) -> None:
    """Greeting, STARTTLS, login, refusals and reuse, as another author understands them."""
    sink = Sink()
    options: dict[str, Any] = {"tls_context": encrypted(), "require_starttls": True}
    if login:
        options |= {"authenticator": authenticate, "auth_required": True}
    with aiosmtpd(sink, **options) as port:
        relay = Relay(
            "127.0.0.1",
            port,
            "starttls",
            "me" if login else None,
            "secret" if login else None,
            ca_file=server_certificate().ca_file,
        )
        one = Session(relay, timeouts=QUICK, local_hostname="worker.example.org")
        assert send(one, content=b".a\r\n..\r\n").outcome is Outcome.SENT
        full = send(one, "full@example.org")
        assert (full.outcome, full.scope, full.smtp_code) == (Outcome.DEFERRED, Scope.ADDRESS, 452)
        refused = send(one, content=b"virus\r\n")
        assert (refused.outcome, refused.stage) == (Outcome.FAILED, Stage.REPLY)
        assert send(one, content=b"last\r\n").outcome is Outcome.SENT
        one.close()
    assert sink.contents == [b".a\r\n..\r\n", b"last\r\n"]
