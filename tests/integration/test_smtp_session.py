"""A session is kept and reused, replaced when it went stale, and logged in once."""

from __future__ import annotations

from copy import deepcopy

import pytest

from pipeline.smtp import Outcome, Relay, Scope, Session, Stage, Timeouts
from tests.support.smtp_client import QUICK, send, session
from tests.support.smtp_server import Rule, ScriptedServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("commands")


def test_S09_one_login_serves_all_messages_of_a_session() -> None:
    """Fifty deliveries log in once, over one connection."""
    with ScriptedServer(credentials=("me", "secret")) as server:
        one = session(server.url)
        for _ in range(50):
            assert send(one).outcome is Outcome.SENT
        one.close()
        assert (server.accepted_count, server.connection_count, server.login_count) == (50, 1, 1)
        assert server.stage_counts["rset"] == server.stage_counts["noop"] == 0


def test_S09_a_session_ends_after_its_share_of_messages() -> None:
    """With a cap of 20, fifty messages take three connections, each ended with QUIT."""
    with ScriptedServer(credentials=("me", "secret")) as server:
        one = session(server.url, messages_per_session=20)
        for _ in range(50):
            assert send(one).outcome is Outcome.SENT
        one.close()
        assert (server.accepted_count, server.connection_count, server.login_count) == (50, 3, 3)
        assert server.stage_counts["quit"] == 3
        assert server.most_connections == 1


def test_S06_a_connection_that_was_closed_meanwhile_is_replaced_for_free() -> None:
    """The first message after an idle time is sent, and nobody hears of the stale connection."""
    with ScriptedServer() as server:
        one = session(server.url)
        assert send(one).outcome is Outcome.SENT
        server.drop_connections()
        server.connection_closed.wait(30)
        assert send(one).outcome is Outcome.SENT
        assert (server.accepted_count, server.connection_count) == (2, 2)
        one.close()


@pytest.mark.parametrize(
    "rule",
    [
        Rule("rset", do="close", times=1),
        Rule("rset", reply="421 4.4.2 Idle for too long", times=1),
        Rule("rset", reply="500 5.5.1 What?", times=1),
        Rule("rset", raw=b"\xff\xff\r\n", times=1),
        Rule("mail", do="close", skip=1, times=1),
        Rule("mail", do="reset", skip=1, times=1),
        Rule("mail", reply="421 4.4.2 Idle for too long", skip=1, times=1),
        Rule("mail", raw=b"\xff\xff\r\n", skip=1, times=1),
    ],
)
def test_S06_a_connection_that_goes_before_its_mail_is_replaced_for_free(rule: Rule) -> None:
    """Whether it shows at RSET or at MAIL: the message goes over a new connection at once."""
    with ScriptedServer([deepcopy(rule)]) as server:
        one = session(server.url, idle_check=0.0)
        assert send(one).outcome is Outcome.SENT
        assert send(one).outcome is Outcome.SENT
        assert (server.accepted_count, server.connection_count) == (2, 2)
        one.close()


def test_S06_a_silent_kept_connection_is_replaced_after_the_commands_time() -> None:
    """A firewall that forgot the connection looks like a server that never answers."""
    with ScriptedServer([Rule("rset", do="silence")]) as server:
        timeouts = Timeouts(connect=5, command=0.3, data=5, reply=5)
        one = session(server.url, timeouts, idle_check=0.0)
        assert send(one).outcome is Outcome.SENT
        assert send(one).outcome is Outcome.SENT
        assert server.connection_count == 2
        one.close()


def test_a_stale_connection_is_replaced_once_only() -> None:
    """If the new one drops at MAIL too, that is the relay's trouble."""
    with ScriptedServer([Rule("mail", do="close", skip=1)]) as server:
        one = session(server.url)
        assert send(one).outcome is Outcome.SENT
        result = send(one)
        assert (result.outcome, result.scope, result.stage) == (
            Outcome.DEFERRED,
            Scope.RELAY,
            Stage.MAIL,
        )
        assert server.connection_count == 2


def test_a_fresh_connection_is_not_replaced() -> None:
    """The free retry is for stale ones; a fresh one that drops is told as it is."""
    with ScriptedServer([Rule("mail", do="close", times=1)]) as server:
        one = session(server.url)
        assert send(one).outcome is Outcome.DEFERRED
        assert server.connection_count == 1
        assert send(one).outcome is Outcome.SENT


@pytest.mark.parametrize("stage", ["rcpt", "data", "reply"])
def test_nothing_after_mail_is_tried_again(stage: str) -> None:
    """A kept connection that drops later than MAIL ends the attempt."""
    rule = {
        "rcpt": Rule("rcpt", do="close", skip=1),
        "data": Rule("data", do="close", skip=1),
        "reply": Rule("reply", do="close", skip=1),
    }[stage]
    with ScriptedServer([rule]) as server:
        one = session(server.url)
        assert send(one).outcome is Outcome.SENT
        assert send(one).outcome is (Outcome.UNCERTAIN if stage == "reply" else Outcome.DEFERRED)
        assert server.connection_count == 1


@pytest.mark.parametrize(
    "rule",
    [
        Rule("rcpt", recipient="nobody@example.org", reply="550 5.1.1 No such user"),
        Rule("rcpt", recipient="nobody@example.org", reply="451 4.7.1 Greylisted"),
        Rule("data", recipient="nobody@example.org", reply="554 5.6.0 No"),
        Rule("dot", recipient="nobody@example.org", reply="554 5.6.0 No"),
    ],
)
def test_a_refused_message_leaves_the_session_in_order(rule: Rule) -> None:
    """The next message goes over the same connection, as if nothing had been."""
    with ScriptedServer([rule]) as server:
        one = session(server.url)
        assert send(one).outcome is Outcome.SENT
        assert send(one, to="nobody@example.org").outcome is not Outcome.SENT
        assert send(one).outcome is Outcome.SENT
        assert send(one, to="bob@example.org").outcome is Outcome.SENT
        one.close()
        assert (server.accepted_count, server.connection_count) == (3, 1)


def test_a_421_ends_the_session() -> None:
    """A server that closes is not talked to any more; the next message connects anew."""
    with ScriptedServer([Rule("rcpt", reply="421 4.7.0 Slow down", times=1)]) as server:
        one = session(server.url)
        result = send(one)
        assert (result.outcome, result.scope) == (Outcome.DEFERRED, Scope.RELAY)
        assert send(one).outcome is Outcome.SENT
        assert server.connection_count == 2
        one.close()


def test_an_abandoned_message_ends_the_session() -> None:
    """Without its dot the connection can only be dropped; the next message connects anew."""
    with ScriptedServer() as server:
        one = session(server.url)
        assert send(one, before_dot=lambda: False).outcome is Outcome.ABANDONED
        assert send(one).outcome is Outcome.SENT
        assert (server.accepted_count, server.connection_count) == (1, 2)
        one.close()


def test_an_idle_session_is_asked_before_it_is_used() -> None:
    """After its idle time a kept connection is tried with RSET, otherwise the question is saved."""
    with ScriptedServer() as server:
        one = session(server.url, idle_check=0.0)
        for _ in range(3):
            assert send(one).outcome is Outcome.SENT
        one.close()
        assert (server.stage_counts["rset"], server.connection_count) == (2, 1)


@pytest.mark.parametrize("answer", ["454 4.7.0 Too many login attempts", "535 5.7.8 Wrong"])
def test_S08_login_trouble_is_the_relays(answer: str) -> None:
    """Throttled or refused: the message waits, with the reason, and one try was made."""
    with ScriptedServer([Rule("auth", reply=answer, times=1)], credentials=("me", "pw")) as server:
        one = session(server.url)
        result = send(one)
        assert (result.outcome, result.scope, result.stage) == (
            Outcome.DEFERRED,
            Scope.RELAY,
            Stage.CONNECT,
        )
        assert str(result.reply) == answer
        assert server.login_count == 1
        assert send(one).outcome is Outcome.SENT
        one.close()


def test_S08_a_wrong_password_is_tried_once() -> None:
    """No second mechanism is tried with it: every refusal counts towards the relay's limit."""
    with ScriptedServer(credentials=("me", "right")) as server:
        relay = Relay("127.0.0.1", server.port, username="me", password="wrong")
        one = Session(relay, timeouts=QUICK, local_hostname="worker.example.org")
        result = send(one)
        assert (result.outcome, result.scope, result.smtp_code) == (
            Outcome.DEFERRED,
            Scope.RELAY,
            535,
        )
        assert server.login_count == 1


def test_S08_mail_without_the_login_it_needs_is_the_relays_trouble() -> None:
    """A relay that wants a login that we don't have says 530 to every message."""
    with ScriptedServer(credentials=("me", "secret")) as server:
        relay = Relay("127.0.0.1", server.port)
        result = send(Session(relay, timeouts=QUICK, local_hostname="worker.example.org"))
        assert (result.outcome, result.scope, result.smtp_code) == (
            Outcome.DEFERRED,
            Scope.RELAY,
            530,
        )
        assert server.login_count == 0


@pytest.mark.parametrize("mechanisms", ["PLAIN", "LOGIN", "CRAM-MD5", "CRAM-MD5 PLAIN", "X LOGIN"])
def test_each_login_mechanism_works(mechanisms: str) -> None:
    """Also with letters beyond ASCII in both."""
    with ScriptedServer(credentials=("jürgen", "pä:ss w"), mechanisms=mechanisms) as server:
        relay = Relay("127.0.0.1", server.port, username="jürgen", password="pä:ss w")
        one = Session(relay, timeouts=QUICK, local_hostname="worker.example.org")
        assert send(one).outcome is Outcome.SENT
        assert server.login_count == 1
        one.close()


def test_a_relay_without_a_usable_login_is_named() -> None:
    """If none of its mechanisms is known here, the error lists them."""
    with ScriptedServer(credentials=("me", "secret"), mechanisms="GSSAPI XOAUTH2") as server:
        result = send(session(server.url))
        assert (result.outcome, result.scope) == (Outcome.DEFERRED, Scope.RELAY)
        assert "GSSAPI XOAUTH2" in result.reason


def test_a_server_without_ehlo_is_greeted_the_old_way() -> None:
    """RFC 5321 section 3.2: HELO where EHLO isn't known."""
    with ScriptedServer([Rule("ehlo", reply="502 5.5.1 What?", times=1)]) as server:
        one = session(server.url)
        assert send(one).outcome is Outcome.SENT
        assert server.stage_counts["ehlo"] == 2
        one.close()


def test_closing_never_raises() -> None:
    """Whatever the server does at QUIT, or however often it is asked for."""
    with ScriptedServer([Rule("quit", do="close")]) as server:
        one = session(server.url)
        one.close()
        assert send(one).outcome is Outcome.SENT
        one.close()
        one.close()
        assert send(one).outcome is Outcome.SENT
        server.go_down()
        one.close()
        wait_until(lambda: server.open_connection_count == 0)


@pytest.mark.parametrize("name", ["", "a b", "a\r\nMAIL", "ü.example"])
def test_a_name_that_can_not_greet_is_refused(name: str) -> None:
    """The name in EHLO is a setting; a wrong one is told at once."""
    with pytest.raises(ValueError, match="local_hostname"):
        Session(Relay("mx", 25), timeouts=QUICK, local_hostname=name)
