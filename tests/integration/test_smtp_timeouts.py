"""No server can hold a worker longer than the stage's time, however it goes about it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from pipeline.smtp import Outcome, Relay, Scope, Session, Stage, Timeouts
from tests.support.smtp_client import Stopwatch, send, send_once, session
from tests.support.smtp_rules import Stage as ServerStage
from tests.support.smtp_server import Rule, ScriptedServer

SHORT = 0.6
#: Above it the test fails: far more than the limit, far less than what would hang.
SLACK = 20.0

STAGES: list[tuple[ServerStage, Timeouts, Outcome, Scope, Stage]] = [
    ("connect", Timeouts(connect=SHORT), Outcome.DEFERRED, Scope.RELAY, Stage.CONNECT),
    ("ehlo", Timeouts(connect=SHORT), Outcome.DEFERRED, Scope.RELAY, Stage.CONNECT),
    ("auth", Timeouts(connect=SHORT), Outcome.DEFERRED, Scope.RELAY, Stage.CONNECT),
    ("mail", Timeouts(command=SHORT), Outcome.DEFERRED, Scope.RELAY, Stage.MAIL),
    ("rcpt", Timeouts(command=SHORT), Outcome.DEFERRED, Scope.MESSAGE, Stage.RCPT),
    ("data", Timeouts(command=SHORT), Outcome.DEFERRED, Scope.MESSAGE, Stage.DATA),
    ("dot", Timeouts(reply=SHORT), Outcome.UNCERTAIN, Scope.MESSAGE, Stage.REPLY),
    ("reply", Timeouts(reply=SHORT), Outcome.UNCERTAIN, Scope.MESSAGE, Stage.REPLY),
]


@pytest.mark.parametrize(("stage", "timeouts", "outcome", "scope", "reached"), STAGES)
def test_S04_a_server_that_falls_silent_is_left_after_the_stages_time(
    stage: ServerStage, timeouts: Timeouts, outcome: Outcome, scope: Scope, reached: Stage
) -> None:
    """A black hole at any stage costs that stage's time and ends like a drop there."""
    with ScriptedServer([Rule(stage, do="silence")], credentials=("me", "secret")) as server:
        with Stopwatch() as watch:
            result = send_once(server.url, timeouts)
        assert (result.outcome, result.scope, result.stage) == (outcome, scope, reached)
        assert "in time" in result.reason
        assert SHORT * 0.9 <= watch.seconds < SHORT + SLACK


@pytest.mark.parametrize(("stage", "timeouts", "outcome", "scope", "reached"), STAGES)
def test_S04_a_server_that_drips_is_left_after_the_stages_time(
    stage: ServerStage, timeouts: Timeouts, outcome: Outcome, scope: Scope, reached: Stage
) -> None:
    """One byte now and then doesn't start the stage's time anew."""
    # No code comes to be whole, also not within the time: zeros, and an end that never comes.
    rule = Rule(stage, raw=b"0" * 600, drip=0.05)
    with ScriptedServer([rule], credentials=("me", "secret")) as server:
        with Stopwatch() as watch:
            result = send_once(server.url, timeouts)
        assert (result.outcome, result.scope, result.stage) == (outcome, scope, reached)
        assert watch.seconds < SHORT + SLACK


def test_S04_a_server_that_does_not_read_is_left_after_the_contents_time() -> None:
    """A content that can't be got rid of is dropped without its dot."""
    with ScriptedServer([Rule("body", delay=30)]) as server:
        with Stopwatch() as watch:
            result = send_once(server.url, Timeouts(data=SHORT), content=b"x\r\n" * 5_000_000)
        assert (result.outcome, result.scope, result.stage) == (
            Outcome.DEFERRED,
            Scope.MESSAGE,
            Stage.DATA,
        )
        assert watch.seconds < SHORT + SLACK


@contextlib.contextmanager
def full_port() -> Iterator[int]:
    """A port whose backlog is full."""
    with contextlib.ExitStack() as open_sockets:
        listener = open_sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port: int = listener.getsockname()[1]
        for _ in range(3):
            filler = open_sockets.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        yield port


def test_S04_a_port_that_takes_no_connection_is_left_after_the_connects_time() -> None:
    """A full backlog swallows connection requests as a packet filter does."""
    with full_port() as port:
        one = Session(
            Relay("127.0.0.1", port), timeouts=Timeouts(connect=SHORT), local_hostname="w.example"
        )
        with Stopwatch() as watch:
            result = send(one)
    assert (result.outcome, result.scope, result.stage) == (
        Outcome.DEFERRED,
        Scope.RELAY,
        Stage.CONNECT,
    )
    assert watch.seconds < SHORT + SLACK


def test_S04_a_black_hole_leaves_time_for_the_hosts_other_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first address takes no connection; the second one is tried within the same time."""
    with full_port() as port, ScriptedServer() as server:
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        addresses = [(*kind, ("127.0.0.1", port)), (*kind, ("127.0.0.1", server.port))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
        result = send_once("smtp://mx.example.org", Timeouts(connect=2.0))
        assert result.outcome is Outcome.SENT


def test_S04_a_silent_name_server_is_left_after_the_connects_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The system's resolver has no time limit that we could set, so nobody waits for it longer."""
    answered = threading.Event()

    def silent(*_: object, **__: object) -> list[object]:
        answered.wait(30)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    with Stopwatch() as watch:
        result = send_once("smtp://mx.example.org", Timeouts(connect=SHORT))
    answered.set()
    assert (result.outcome, result.scope, result.stage) == (
        Outcome.DEFERRED,
        Scope.RELAY,
        Stage.CONNECT,
    )
    assert "name lookup" in result.reason
    assert watch.seconds < SHORT + SLACK


def test_S04_a_silent_tls_handshake_is_left_after_the_connects_time() -> None:
    """A server that accepts and never starts TLS holds nobody."""
    with ScriptedServer([Rule("connect", do="silence")]) as server:
        relay = Relay("127.0.0.1", server.port, "tls")
        one = Session(relay, timeouts=Timeouts(connect=SHORT), local_hostname="w.example")
        with Stopwatch() as watch:
            result = send(one)
        assert (result.outcome, result.scope) == (Outcome.DEFERRED, Scope.RELAY)
        assert "TLS" in result.reason
        assert watch.seconds < SHORT + SLACK


def test_a_slow_server_within_the_time_is_waited_for() -> None:
    """Slow is not dead: each stage has its own time."""
    rules = [Rule(stage, delay=0.3) for stage in ("connect", "mail", "rcpt", "data", "reply")]
    with ScriptedServer(rules) as server:
        assert send_once(server.url).outcome is Outcome.SENT


def test_closing_a_session_waits_briefly_only() -> None:
    """QUIT is a courtesy; a server that doesn't answer it delays nobody."""
    with ScriptedServer([Rule("quit", do="silence")]) as server:
        one = session(server.url, Timeouts(command=SHORT))
        assert send(one).outcome is Outcome.SENT
        with Stopwatch() as watch:
            one.close()
        assert watch.seconds < SHORT + SLACK
