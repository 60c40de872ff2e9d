"""TLS is verified and, where it is asked for, demanded."""

from __future__ import annotations

from typing import Literal

import pytest

from pipeline.smtp import Outcome, Relay, Result, Scope, Session, Stage
from tests.support.certificates import server_certificate
from tests.support.smtp_client import QUICK, send, session
from tests.support.smtp_server import Rule, ScriptedServer

RELAY_WAITS = (Outcome.DEFERRED, Scope.RELAY, Stage.CONNECT)

Encrypted = Literal["starttls", "tls"]


def verdict(result: Result) -> tuple[Outcome, Scope, Stage]:
    return result.outcome, result.scope, result.stage


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_mail_goes_over_tls_with_a_login(security: Encrypted) -> None:
    """Both kinds work, with the authority's file from the URL, for many messages."""
    with ScriptedServer(security=security, credentials=("me", "secret")) as server:
        one = session(server.url)
        for _ in range(3):
            assert send(one).outcome is Outcome.SENT
        assert send(one, content=b"x" * 3_000_000).outcome is Outcome.SENT
        one.close()
        assert (server.connection_count, server.login_count, server.accepted_count) == (1, 1, 4)


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_a_certificate_of_an_unknown_authority_is_refused(security: Encrypted) -> None:
    """Without the authority's file nothing is sent, neither login nor mail."""
    with ScriptedServer(security=security, credentials=("me", "secret")) as server:
        relay = Relay("127.0.0.1", server.port, security, "me", "secret")
        result = send(Session(relay, timeouts=QUICK, local_hostname="w.example"))
        assert verdict(result) == RELAY_WAITS
        assert "certificate" in result.reason
        assert (server.login_count, server.message_count) == (0, 0)


def test_a_certificate_for_another_name_is_refused() -> None:
    """The name in the URL is what the certificate must be for."""
    with ScriptedServer(security="tls") as server:
        relay = Relay("127.0.0.2", server.port, "tls", ca_file=server.ca_file)
        server.go_down()
        server.host = "0.0.0.0"
        server.come_up()
        result = send(Session(relay, timeouts=QUICK, local_hostname="w.example"))
        assert verdict(result) == RELAY_WAITS
        assert "127.0.0.2" in result.reason
        assert "certificate" in result.reason


def test_a_server_without_starttls_gets_no_mail() -> None:
    """Nobody on the way can take the encryption out of the conversation."""
    with ScriptedServer(credentials=("me", "secret")) as server:
        relay = Relay("127.0.0.1", server.port, "starttls", "me", "secret")
        result = send(Session(relay, timeouts=QUICK, local_hostname="w.example"))
        assert verdict(result) == RELAY_WAITS
        assert "STARTTLS" in result.reason
        assert (server.login_count, server.message_count) == (0, 0)


def test_a_refused_starttls_gets_no_mail() -> None:
    """A 454 to STARTTLS is not an invitation to go on in clear text."""
    rule = Rule("starttls", reply="454 4.7.0 TLS not available")
    with ScriptedServer([rule], security="starttls") as server:
        result = send(session(server.url))
        assert verdict(result) == RELAY_WAITS
        assert result.smtp_code == 454
        assert server.message_count == 0


def test_bytes_slipped_in_before_the_handshake_are_refused() -> None:
    """Replies put there in clear text must not be believed once it is encrypted."""
    rule = Rule("starttls", raw=b"220 Go ahead\r\n250 Fine\r\n")
    with ScriptedServer([rule], security="starttls") as server:
        result = send(session(server.url))
        assert verdict(result) == RELAY_WAITS
        assert "unencrypted bytes" in result.reason
        assert server.message_count == 0


def test_a_plain_server_on_a_tls_port_is_told() -> None:
    """The wrong scheme in the URL is the relay's trouble, with a reason."""
    with ScriptedServer() as server:
        relay = Relay("127.0.0.1", server.port, "tls", ca_file=server_certificate().ca_file)
        result = send(Session(relay, timeouts=QUICK, local_hostname="w.example"))
        assert verdict(result) == RELAY_WAITS
        assert "TLS handshake failed" in result.reason


def test_a_missing_authority_file_is_named() -> None:
    """The file's name is in the reason, and the mail waits."""
    relay = Relay("127.0.0.1", 1, "tls", ca_file="/nowhere/ca.pem")
    result = send(Session(relay, timeouts=QUICK, local_hostname="w.example"))
    assert verdict(result) == RELAY_WAITS
    assert "/nowhere/ca.pem" in result.reason


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_D04_reply_lost_after_the_dot_over_tls(security: Encrypted) -> None:
    """Encryption changes nothing about what is known and what isn't."""
    with ScriptedServer([Rule("reply", do="close")], security=security) as server:
        result = send(session(server.url))
        assert (result.outcome, result.stage) == (Outcome.UNCERTAIN, Stage.REPLY)
        assert server.accepted_count == 1
    with ScriptedServer([Rule("body", do="close")], security=security) as server:

        def when_closed() -> bool:
            return server.connection_closed.wait(30)

        result = send(session(server.url), before_dot=when_closed)
        assert (result.outcome, result.stage) == (Outcome.DEFERRED, Stage.DATA)


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_S06_a_stale_tls_connection_is_replaced_for_free(security: Encrypted) -> None:
    """A closed TLS connection is noticed before it is used, too."""
    with ScriptedServer(security=security) as server:
        one = session(server.url)
        assert send(one).outcome is Outcome.SENT
        server.drop_connections()
        server.connection_closed.wait(30)
        assert send(one).outcome is Outcome.SENT
        assert server.connection_count == 2
        one.close()
