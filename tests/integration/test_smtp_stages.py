"""What a server does at each stage decides the outcome, and only the right one."""

from __future__ import annotations

import socket
import struct
import threading
import time

import pytest

from pipeline.replies import parse_reply
from pipeline.smtp import Outcome, Reply, Result, Scope, Stage
from pipeline.smtp.dialogue import run
from pipeline.smtp.transaction import StoppedError, Transaction
from pipeline.smtp.wire import Wire
from tests.support.smtp_client import CONTENT, QUICK, send, send_once, session
from tests.support.smtp_rules import Stage as ServerStage
from tests.support.smtp_server import Rule, ScriptedServer

pytestmark = pytest.mark.usefixtures("commands")


def sent_to(*rules: Rule, content: bytes = CONTENT) -> tuple[Result, ScriptedServer]:
    with ScriptedServer(rules) as server:
        return send_once(server.url, content=content), server


def verdict(result: Result) -> tuple[Outcome, Scope, Stage]:
    return result.outcome, result.scope, result.stage


def test_an_accepted_message_is_sent() -> None:
    """Envelope and content arrive as they were given, and the reply is kept."""
    result, server = sent_to()
    assert verdict(result) == (Outcome.SENT, Scope.MESSAGE, Stage.REPLY)
    assert result.reply == Reply(250, "2.0.0", "Accepted")
    assert (result.smtp_code, result.enhanced_code, result.error) == (250, "2.0.0", None)
    [accepted] = server.accepted
    assert accepted.sender == "pipeline@example.org"
    assert accepted.recipients == ["ada@example.org"]
    assert accepted.content == CONTENT
    assert server.stage_counts["quit"] == 1


@pytest.mark.parametrize(
    ("given", "arrived"),
    [
        (b".\r\n", b".\r\n"),
        (b"..\r\n.a\r\n\r\n.\r\nb\r\n", b"..\r\n.a\r\n\r\n.\r\nb\r\n"),
        (b"no end", b"no end\r\n"),
        (b"", b""),
        (b"\r\n", b"\r\n"),
        (b"a\nb\rc\r\n", b"a\r\nb\r\nc\r\n"),
        (b"a\n.\nb\r\r\n", b"a\r\n.\r\nb\r\n\r\n"),
        (b"a\r\n.\rMAIL FROM:<x@y>\r\n", b"a\r\n.\r\nMAIL FROM:<x@y>\r\n"),
        (b"x" * 3_000_000, b"x" * 3_000_000 + b"\r\n"),
    ],
)
def test_content_arrives_whole_whatever_dots_and_line_ends_it_has(
    given: bytes, arrived: bytes
) -> None:
    """No content can end its message early; bare line ends are made whole ones."""
    result, server = sent_to(content=given)
    assert result.outcome is Outcome.SENT, result
    assert [each.content for each in server.accepted] == [arrived]


DROPS: list[tuple[ServerStage, Outcome, Scope, Stage]] = [
    ("connect", Outcome.DEFERRED, Scope.RELAY, Stage.CONNECT),
    ("ehlo", Outcome.DEFERRED, Scope.RELAY, Stage.CONNECT),
    ("mail", Outcome.DEFERRED, Scope.RELAY, Stage.MAIL),
    ("rcpt", Outcome.DEFERRED, Scope.MESSAGE, Stage.RCPT),
    ("data", Outcome.DEFERRED, Scope.MESSAGE, Stage.DATA),
    ("dot", Outcome.UNCERTAIN, Scope.MESSAGE, Stage.REPLY),
    ("reply", Outcome.UNCERTAIN, Scope.MESSAGE, Stage.REPLY),
]


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize(("stage", "outcome", "scope", "reached"), DROPS)
def test_S03_a_drop_is_uncertain_only_after_the_dot(
    stage: ServerStage, outcome: Outcome, scope: Scope, reached: Stage, how: str
) -> None:
    """The same dropped connection is safe before the final dot and unknown after it."""
    rule = Rule(stage, do="close") if how == "close" else Rule(stage, do="reset")
    result, server = sent_to(rule)
    assert verdict(result) == (outcome, scope, reached)
    assert result.reply is None
    assert result.error
    assert server.accepted_count == (1 if stage == "reply" else 0)


@pytest.mark.parametrize("stage", [each[0] for each in DROPS])
@pytest.mark.parametrize(
    "garbage",
    [b"hello\r\n", b"\0\xff\xfe\r\n", b"99\r\n", b"250-Yes\r\n550 No\r\n", b"\r\n", b"2500 OK\r\n"],
)
def test_garbage_in_place_of_a_reply_counts_as_none(stage: ServerStage, garbage: bytes) -> None:
    """What is no reply says neither yes nor no: deferred before the dot, uncertain after it."""
    result, _ = sent_to(Rule(stage, raw=garbage))
    expected = next(each for each in DROPS if each[0] == stage)
    assert verdict(result) == expected[1:]
    result.reason.encode()
    assert "\0" not in result.reason


@pytest.mark.parametrize("stage", [each[0] for each in DROPS])
def test_an_endless_reply_counts_as_none(stage: ServerStage) -> None:
    """A reply of megabytes isn't read to its end; a code at its start counts after the dot only."""
    result, _ = sent_to(Rule(stage, raw=b"x" * 2_000_000))
    expected = next(each for each in DROPS if each[0] == stage)
    assert verdict(result) == expected[1:]


def test_a_definite_code_after_the_dot_counts_however_the_reply_ends() -> None:
    """A whole code is an answer: without a line end, cut in its second line, or far too long."""
    for raw in (b"250 Accep", b"250", b"250-Accepted\r\n25", b"250 " + b"x" * 200_000):
        result, _ = sent_to(Rule("reply", raw=raw, do="close"))
        assert verdict(result) == (Outcome.SENT, Scope.MESSAGE, Stage.REPLY), raw[:20]
        assert result.smtp_code == 250
    result, _ = sent_to(Rule("dot", raw=b"554 Too", do="close"))
    assert verdict(result) == (Outcome.FAILED, Scope.MESSAGE, Stage.REPLY)


def test_half_a_code_after_the_dot_is_uncertain() -> None:
    """Two digits could have become anything."""
    result, _ = sent_to(Rule("reply", raw=b"25", do="close"))
    assert result.outcome is Outcome.UNCERTAIN


def test_a_code_cut_off_before_the_dot_is_deferred() -> None:
    """Nothing is given up for a reply that broke off; what came of it is told."""
    result, _ = sent_to(Rule("rcpt", raw=b"550 No such", do="close"))
    assert verdict(result) == (Outcome.DEFERRED, Scope.MESSAGE, Stage.RCPT)
    assert "550 No such" in result.reason


def test_D04_reply_lost_after_the_dot() -> None:
    """The server took it and the answer was lost: uncertain by name, and not tried again here."""
    result, server = sent_to(Rule("reply", do="close"))
    assert verdict(result) == (Outcome.UNCERTAIN, Scope.MESSAGE, Stage.REPLY)
    assert result.error is not None
    assert "after the final dot" in result.error
    assert server.accepted_count == server.connection_count == 1


@pytest.mark.parametrize(
    ("rule", "outcome", "scope"),
    [
        (Rule("connect", reply="554 5.3.2 Closed"), Outcome.DEFERRED, Scope.RELAY),
        (Rule("connect", reply="421 4.3.2 Closed"), Outcome.DEFERRED, Scope.RELAY),
        (Rule("ehlo", reply="550 5.7.1 Not you"), Outcome.DEFERRED, Scope.RELAY),
        (Rule("mail", reply="451 4.3.0 Later"), Outcome.DEFERRED, Scope.RELAY),
        (Rule("mail", reply="550 5.1.8 Sender"), Outcome.DEFERRED, Scope.RELAY),
        (Rule("mail", reply="552 5.3.4 Size"), Outcome.FAILED, Scope.MESSAGE),
        (Rule("mail", reply="250 Hm", raw=b"250 Hm\r\n"), Outcome.DEFERRED, Scope.MESSAGE),
        (Rule("rcpt", reply="451 4.7.1 Greylisted"), Outcome.DEFERRED, Scope.ADDRESS),
        (Rule("rcpt", reply="550 5.1.1 Nobody"), Outcome.FAILED, Scope.ADDRESS),
        (Rule("rcpt", reply="354 Hm"), Outcome.DEFERRED, Scope.MESSAGE),
        (Rule("data", reply="451 4.3.0 Later"), Outcome.DEFERRED, Scope.MESSAGE),
        (Rule("data", reply="554 5.6.0 No"), Outcome.FAILED, Scope.MESSAGE),
        (Rule("data", reply="250 Hm"), Outcome.DEFERRED, Scope.MESSAGE),
        (Rule("body", reply="552 5.3.4 Size", do="close"), Outcome.FAILED, Scope.MESSAGE),
        (Rule("body", reply="250 Hm", do="close"), Outcome.DEFERRED, Scope.MESSAGE),
        (Rule("body", do="close"), Outcome.DEFERRED, Scope.MESSAGE),
        (Rule("dot", reply="452 4.3.1 Disk full"), Outcome.DEFERRED, Scope.MESSAGE),
        (Rule("dot", reply="421 4.3.2 Bye"), Outcome.DEFERRED, Scope.RELAY),
        (Rule("dot", reply="550 5.7.1 Spam"), Outcome.FAILED, Scope.MESSAGE),
        (Rule("dot", reply="552 5.2.2 Full"), Outcome.FAILED, Scope.MESSAGE),
        (Rule("dot", reply="554 5.6.0 No"), Outcome.FAILED, Scope.MESSAGE),
    ],
)
def test_O05_no_refusal_is_taken_for_success(rule: Rule, outcome: Outcome, scope: Scope) -> None:
    """Each way of not accepting ends as what it is; no exception is no proof of anything."""

    def when_all_arrived() -> bool:
        # The content left at once, but a refusal in the middle of it may still be on its way.
        if rule.stage == "body":
            assert server_has_closed.wait(30)
        return True

    server = ScriptedServer([rule])
    server_has_closed = server.connection_closed
    with server:
        result = send_once(server.url, before_dot=when_all_arrived)
    assert (result.outcome, result.scope) == (outcome, scope), result
    assert server.accepted_count == 0


def test_S11_the_reply_is_kept_with_code_enhanced_code_and_text() -> None:
    """Why a login was refused can be read from the result."""
    rule = Rule("auth", reply="454 4.7.0 Too many login attempts,\ntry again later")
    with ScriptedServer([rule], credentials=("me", "secret")) as server:
        result = send_once(server.url)
    assert verdict(result) == (Outcome.DEFERRED, Scope.RELAY, Stage.CONNECT)
    assert result.reply == Reply(454, "4.7.0", "Too many login attempts, try again later")
    assert "logging in as 'me'" in result.reason
    assert "secret" not in result.reason


def test_a_reply_in_any_letters_can_be_stored() -> None:
    """NUL, escape sequences and bytes that are no UTF-8 don't get any further."""
    result, _ = sent_to(Rule("rcpt", raw=b"550 5.1.1 Gr\xc3\xbc\xdf\0\x1b[2J dich\xff\r\n"))
    assert result.reply == Reply(550, "5.1.1", "Grü� [2J dich�")


def test_S01_421_to_one_connection_too_many_is_held_against_no_message() -> None:
    """The third connection at once is told to wait; its message is deferred, the relay to blame."""
    with ScriptedServer(max_connections=2) as server:
        others = [socket.create_connection((server.host, server.port)) for _ in range(2)]
        for other in others:
            assert other.recv(100).startswith(b"220")
        result = send_once(server.url)
        assert verdict(result) == (Outcome.DEFERRED, Scope.RELAY, Stage.CONNECT)
        assert result.reply == Reply(421, "4.7.0", "Too many connections")
        for other in others:
            other.close()


def test_S02_a_name_that_does_not_resolve_is_deferred() -> None:
    """DNS trouble is the relay's and passes."""
    result = send_once("smtp://no-such-host.invalid")
    assert verdict(result) == (Outcome.DEFERRED, Scope.RELAY, Stage.CONNECT)
    assert "name lookup failed" in result.reason


def test_S02_a_name_that_can_not_be_looked_up_is_deferred() -> None:
    """A label of 70 letters makes the resolver's encoding fail, which is DNS trouble too."""
    result = send_once(f"smtp://{'x' * 70}.ü.example")
    assert verdict(result) == (Outcome.DEFERRED, Scope.RELAY, Stage.CONNECT)


def test_a_refused_connection_is_deferred() -> None:
    """A relay that is down is up again one day."""
    with ScriptedServer() as server:
        server.go_down()
        result = send_once(server.url)
        assert verdict(result) == (Outcome.DEFERRED, Scope.RELAY, Stage.CONNECT)
        assert "refused" in result.reason
        server.come_up()
        assert send_once(server.url).outcome is Outcome.SENT


def test_the_callers_no_drops_the_message_before_its_dot() -> None:
    """A lease lost before the dot: nothing is accepted, and the outcome has its name."""
    with ScriptedServer() as server:
        one = session(server.url)
        result = send(one, before_dot=lambda: False)
        assert server.connection_closed.wait(30)
        assert verdict(result) == (Outcome.ABANDONED, Scope.MESSAGE, Stage.DATA)
        assert server.accepted_count == 0
        assert server.stage_counts["dot"] == 0


def test_the_callers_exception_drops_the_message_and_goes_through() -> None:
    """If the marker can't be committed, the server must not get the dot."""

    def fail() -> bool:
        raise RuntimeError("no database")

    with ScriptedServer() as server:
        one = session(server.url)
        with pytest.raises(RuntimeError, match="no database"):
            send(one, before_dot=fail)
        assert server.connection_closed.wait(30)
        assert server.accepted_count == 0
        assert server.stage_counts["dot"] == 0


def test_the_caller_is_asked_after_the_content_and_before_the_dot() -> None:
    """When the marker is committed, the server has everything but the dot."""
    with ScriptedServer() as server:
        seen: list[tuple[int, int]] = []

        def look() -> bool:
            seen.append((server.stage_counts["body"], server.stage_counts["dot"]))
            return True

        # The content is too big for the socket buffers: it can't be written without being read.
        assert send_once(server.url, content=b"x\r\n" * 4_000_000, before_dot=look).outcome is (
            Outcome.SENT
        )
        assert seen == [(1, 0)]


def test_a_server_that_leaves_while_the_caller_is_asked_gets_no_dot() -> None:
    """It is known not to have the message, although the marker is set: deferred, not uncertain."""
    with ScriptedServer() as server:

        def drop() -> bool:
            server.drop_connections()
            assert server.connection_closed.wait(30)
            return True

        result = send_once(server.url, before_dot=drop)
        assert verdict(result) == (Outcome.DEFERRED, Scope.MESSAGE, Stage.DATA)


def test_an_answer_nobody_asked_for_is_not_taken_for_the_one_to_the_dot() -> None:
    """A 250 too many would make a mail count as sent that was never accepted."""
    asked: list[bool] = []

    def ask() -> bool:
        asked.append(True)
        return True

    rule = Rule("data", raw=b"354 Go ahead\r\n250 2.0.0 Accepted\r\n")
    with ScriptedServer([rule]) as server:
        result = send_once(server.url, before_dot=ask)
        assert verdict(result) == (Outcome.DEFERRED, Scope.MESSAGE, Stage.DATA)
        assert server.accepted_count == 0
        assert not asked


def test_an_answer_nobody_asked_for_is_not_taken_for_the_next_one(commands: str) -> None:
    """Two answers to MAIL: the second one lets no content through, whatever it is taken for."""
    result, server = sent_to(Rule("mail", raw=b"250 Fine\r\n250 Fine\r\n"))
    stage = Stage.RCPT if commands == "one by one" else Stage.DATA
    assert verdict(result) == (Outcome.DEFERRED, Scope.MESSAGE, stage)
    assert not server.accepted


def test_a_refusal_in_the_middle_of_the_content_is_read() -> None:
    """A server that says why and closes, while megabytes are still on their way to it."""
    result, _ = sent_to(
        Rule("body", reply="552 5.3.4 Too big", do="close"), content=b"x\r\n" * 4_000_000
    )
    assert verdict(result) == (Outcome.FAILED, Scope.MESSAGE, Stage.DATA)
    assert result.smtp_code == 552


def test_a_dot_of_which_no_byte_left_is_known_not_to_be_sent() -> None:
    """The connection was reset before: the system takes nothing, and that is definite."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        wire = run(Wire.connect("127.0.0.1", listener.getsockname()[1], time.monotonic() + 5))
        accepted, _ = listener.accept()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        accepted.close()
    with pytest.raises(StoppedError) as raised:
        run(Transaction(wire, {}, QUICK).dot())
    wire.close()
    assert raised.value.stage is Stage.DATA


def test_the_dot_is_not_held_back() -> None:
    """Content and dot leave as two writes; Nagle's algorithm would put 40 ms between them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connected = socket.create_connection(listener.getsockname())
        wire = Wire(connected)
        assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        wire.close()


def test_a_server_that_asks_for_content_after_a_refusal_is_given_none() -> None:
    """Told all at once, it refused the recipient and wants the message all the same: it is left."""
    script = b"250 Sender fine\r\n550 5.1.1 Nobody\r\n354 Go on\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        heard: list[bytes] = []

        def serve() -> None:
            accepted, _ = listener.accept()
            with accepted, accepted.makefile("rb") as lines:
                accepted.sendall(b"220 hello\r\n")
                lines.readline()
                accepted.sendall(b"250-hello\r\n250 PIPELINING\r\n")
                heard.extend(lines.readline() for _ in range(3))
                accepted.sendall(script)
                heard.append(lines.read())

        serving = threading.Thread(target=serve)
        serving.start()
        result = send_once(f"smtp://127.0.0.1:{listener.getsockname()[1]}")
        serving.join()
    assert verdict(result) == (Outcome.FAILED, Scope.ADDRESS, Stage.RCPT)
    assert [line[:4] for line in heard] == [b"MAIL", b"RCPT", b"DATA", b""]


def test_a_connection_is_used_on_after_a_refusal() -> None:
    """What was refused with what followed it leaves the connection in step."""
    with ScriptedServer([Rule("rcpt", reply="550 5.1.1 Nobody", times=1)]) as server:
        one = session(server.url)
        assert verdict(send(one)) == (Outcome.FAILED, Scope.ADDRESS, Stage.RCPT)
        assert send(one).outcome is Outcome.SENT
        assert server.connection_count == 1
        one.close()


@pytest.mark.parametrize(
    "address", ["", "a b@x", "a@x>\r\nRCPT TO:<b@y", "a@x\n", "<a@x>", "a\0@x", "a" * 300 + "@x"]
)
def test_an_address_that_can_not_be_never_reaches_the_server(address: str) -> None:
    """Nothing in an address can end a command or begin another."""
    with ScriptedServer() as server:
        one = session(server.url)
        result = send(one, to=address)
        assert verdict(result) == (Outcome.FAILED, Scope.ADDRESS, Stage.PREPARE)
        assert result.error
        result = one.send("a@b\r\nDATA", "ada@example.org", CONTENT, lambda: True)
        assert verdict(result) == (Outcome.DEFERRED, Scope.RELAY, Stage.PREPARE)
        assert server.connection_count == 0


def test_letters_beyond_ascii_need_a_server_that_takes_them() -> None:
    """SMTPUTF8 is asked for where it is offered, and the address fails where it isn't."""
    with ScriptedServer() as server:
        one = session(server.url)
        result = send(one, to="jürgen@example.org")
        assert verdict(result) == (Outcome.FAILED, Scope.ADDRESS, Stage.RCPT)
        assert send(one).outcome is Outcome.SENT
        one.close()
    with ScriptedServer(extensions=["SMTPUTF8", "8BITMIME"]) as server:
        one = session(server.url)
        assert send(one, to="jürgen@example.org").outcome is Outcome.SENT
        assert server.accepted[0].recipients == ["jürgen@example.org"]
        one.close()


def test_a_fault_of_ours_after_the_dot_is_uncertain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever went wrong here, the server may have taken the message."""

    def broken(lines: list[bytes]) -> Reply | None:
        if b"taken" in lines[0]:
            raise MemoryError("no room")
        return parse_reply(lines)

    monkeypatch.setattr("pipeline.smtp.wire.parse_reply", broken)
    result, server = sent_to(Rule("reply", reply="250 2.0.0 taken"))
    assert verdict(result) == (Outcome.UNCERTAIN, Scope.MESSAGE, Stage.REPLY)
    assert result.error == "after the final dot: MemoryError: no room"
    assert server.accepted_count == 1
