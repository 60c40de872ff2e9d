"""Replies are read from lines and sorted by stage and code."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.replies import (
    Outcome,
    Reply,
    Scope,
    Stage,
    Verdict,
    classify,
    ends_reply,
    parse_broken_reply,
    parse_reply,
    storable,
)

BEFORE_THE_DOT = [Stage.CONNECT, Stage.MAIL, Stage.RCPT, Stage.DATA]
RELAY = Verdict(Outcome.DEFERRED, Scope.RELAY)
ADDRESS_LATER = Verdict(Outcome.DEFERRED, Scope.ADDRESS)
ADDRESS_NEVER = Verdict(Outcome.FAILED, Scope.ADDRESS)
LATER = Verdict(Outcome.DEFERRED, Scope.MESSAGE)
NEVER = Verdict(Outcome.FAILED, Scope.MESSAGE)
SENT = Verdict(Outcome.SENT, Scope.MESSAGE)
UNCERTAIN = Verdict(Outcome.UNCERTAIN, Scope.MESSAGE)


def reply(text: str) -> Reply:
    found = parse_reply([text.encode()])
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("stage", "text", "verdict"),
    [
        (Stage.CONNECT, "554 5.3.2 Not accepting mail", RELAY),
        (Stage.CONNECT, "535 5.7.8 Wrong password", RELAY),
        (Stage.CONNECT, "454 4.7.0 Too many logins", RELAY),
        (Stage.MAIL, "421 4.7.0 Slow down", RELAY),
        (Stage.MAIL, "452 4.3.1 Disk full", RELAY),
        (Stage.MAIL, "451 4.4.1 No answer from host", RELAY),
        (Stage.MAIL, "452 Disk full", RELAY),
        (Stage.MAIL, "454 4.7.0 Throttled", RELAY),
        (Stage.MAIL, "451 4.1.8 Sender's domain does not resolve", LATER),
        (Stage.MAIL, "450 Later", LATER),
        (Stage.MAIL, "550 5.7.1 Sender refused", RELAY),
        (Stage.MAIL, "530 5.7.0 Log in first", RELAY),
        (Stage.MAIL, "553 Sender not owned by user", RELAY),
        (Stage.MAIL, "552 Too big", NEVER),
        (Stage.MAIL, "523 5.3.4 Too big", NEVER),
        (Stage.MAIL, "554 5.2.3 Too big", NEVER),
        (Stage.RCPT, "421 4.4.2 Bye", RELAY),
        (Stage.RCPT, "450 4.2.1 Mailbox busy", ADDRESS_LATER),
        (Stage.RCPT, "451 4.7.1 Greylisted", ADDRESS_LATER),
        (Stage.RCPT, "452 4.2.2 Mailbox full", ADDRESS_LATER),
        (Stage.RCPT, "550 5.1.1 No such user", ADDRESS_NEVER),
        (Stage.RCPT, "550 No such user", ADDRESS_NEVER),
        (Stage.RCPT, "552 5.2.2 Mailbox full", ADDRESS_NEVER),
        (Stage.RCPT, "554 5.7.1 Refused", ADDRESS_NEVER),
        (Stage.RCPT, "530 Log in first", RELAY),
        (Stage.RCPT, "550 5.7.0 Authentication required", RELAY),
        (Stage.DATA, "421 Bye", RELAY),
        (Stage.DATA, "451 4.3.0 Later", LATER),
        (Stage.DATA, "554 5.5.1 No valid recipients", NEVER),
        (Stage.REPLY, "250 2.0.0 Queued", SENT),
        (Stage.REPLY, "251 Forwarded", SENT),
        (Stage.REPLY, "421 4.3.0 Shutting down", RELAY),
        (Stage.REPLY, "451 4.3.0 Later", LATER),
        (Stage.REPLY, "452 4.3.1 Disk full", LATER),
        (Stage.REPLY, "550 5.7.1 Spam", NEVER),
        (Stage.REPLY, "552 5.3.4 Too big", NEVER),
        (Stage.REPLY, "554 5.6.0 Malformed", NEVER),
        (Stage.REPLY, "354 Go ahead", UNCERTAIN),
        (Stage.REPLY, "150 Hm", UNCERTAIN),
        (Stage.REPLY, "999 Hm", UNCERTAIN),
    ],
)
def test_a_reply_is_sorted_by_stage_and_code(stage: Stage, text: str, verdict: Verdict) -> None:
    """Each refusal is about the message, the address or the relay, and for now or for ever."""
    assert classify(stage, reply(text)) == verdict


@pytest.mark.parametrize(
    ("stage", "verdict"),
    [
        (Stage.PREPARE, LATER),
        (Stage.CONNECT, RELAY),
        (Stage.MAIL, RELAY),
        (Stage.RCPT, LATER),
        (Stage.DATA, LATER),
        (Stage.DOT, UNCERTAIN),
        (Stage.REPLY, UNCERTAIN),
    ],
)
def test_S02_no_code_is_never_permanent(stage: Stage, verdict: Verdict) -> None:
    """A stage without an answer is deferred before the dot and uncertain after it."""
    assert classify(stage, None) == verdict


@pytest.mark.parametrize("stage", BEFORE_THE_DOT)
def test_S01_421_is_about_the_relay_and_temporary(stage: Stage) -> None:
    """A 421 says that the relay closes; it is held against no message."""
    assert classify(stage, reply("421 4.7.0 Too many connections")) == RELAY


@pytest.mark.parametrize("code", [454, 535])
def test_S08_login_trouble_is_about_the_relay(code: int) -> None:
    """A login that is throttled or refused stops nobody's mail for good."""
    assert classify(Stage.CONNECT, Reply(code, None, "No")) == RELAY


@given(
    stage=st.sampled_from(list(Stage)),
    code=st.integers(0, 999),
    enhanced=st.none() | st.from_regex(r"[245]\.[0-9]\.[0-9]", fullmatch=True),
)
def test_O05_only_a_2xx_after_the_dot_is_sent(
    stage: Stage, code: int, enhanced: str | None
) -> None:
    """Whatever the codes, nothing else counts as sent, and nothing before the dot as uncertain."""
    verdict = classify(stage, Reply(code, enhanced, ""))
    after = stage in (Stage.DOT, Stage.REPLY)
    assert (verdict.outcome is Outcome.SENT) == (after and 200 <= code < 300)
    if verdict.outcome is Outcome.UNCERTAIN:
        assert after
    if verdict.outcome is Outcome.FAILED:
        assert 500 <= code < 600
        assert verdict.scope is not Scope.RELAY


def test_an_enhanced_code_is_taken_off_the_text() -> None:
    """The code of RFC 3463 has a field of its own, also where each line repeats it."""
    lines = [b"550-5.1.1 The account that you tried to reach", b"550 5.1.1 does not exist."]
    found = parse_reply(lines)
    assert found == Reply(550, "5.1.1", "The account that you tried to reach does not exist.")
    assert str(found) == "550 5.1.1 The account that you tried to reach does not exist."


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"250", Reply(250, None, "")),
        (b"250 ", Reply(250, None, "")),
        (b"250OK", Reply(250, None, "OK")),
        (b"250\tOK", Reply(250, None, "OK")),
        (b"550 5.1.1", Reply(550, "5.1.1", "")),
        (b"550 5.1.1234 Hm", Reply(550, None, "5.1.1234 Hm")),
        (b"220 5.1.1.1 is my address", Reply(220, None, "5.1.1.1 is my address")),
        (b"", None),
        (b"25", None),
        (b"2500 OK", None),
        (b" 250 OK", None),
        (b"OK 250", None),
        (b"HTTP/1.1 400 Bad Request", None),
        ("２５０ OK".encode(), None),
        (b"\xff\xfe\x00", None),
    ],
)
def test_a_line_is_a_reply_only_with_a_code_of_three_digits(
    line: bytes, found: Reply | None
) -> None:
    """Servers are sloppy about what follows the code; the code itself must be one."""
    assert parse_reply([line]) == found


def test_contradicting_codes_are_no_reply() -> None:
    """RFC 5321 wants one code on all lines; a yes and a no together are neither."""
    assert parse_reply([b"250-Fine", b"550 Not fine"]) is None
    assert parse_reply([]) is None


def test_a_broken_reply_keeps_a_definite_code() -> None:
    """What came before the connection broke counts if it has a whole code."""
    assert parse_broken_reply([], b"250 Accep") == Reply(250, None, "Accep")
    assert parse_broken_reply([b"250-Fine"], b"25") == Reply(250, None, "Fine")
    assert parse_broken_reply([b"250-Fine"], b"550 ") is None
    assert parse_broken_reply([], b"25") is None
    assert parse_broken_reply([], b"") is None


def test_only_a_hyphen_after_the_code_announces_another_line() -> None:
    """A line that is no reply ends it, so that nobody waits for its continuation."""
    assert not ends_reply(b"250-More")
    assert ends_reply(b"250 Last")
    assert ends_reply(b"250")
    assert ends_reply(b"nonsense-")


@given(st.lists(st.binary(max_size=80), max_size=4))
def test_any_bytes_can_be_read_and_the_text_can_be_stored(lines: list[bytes]) -> None:
    """Garbage never raises, and what is kept has no NUL, control character or surrogate."""
    found = parse_reply(lines)
    if found is not None:
        assert len(found.text) <= 1000
        assert not {unicodedata.category(each) for each in found.text} & {"Cc", "Cf", "Cs"}
        found.text.encode("utf-8")


def test_stored_text_is_one_line_without_control_characters() -> None:
    """NUL breaks Postgres and the queue, escapes and direction marks deceive who reads them."""
    assert storable("a\0b\r\n\tc\x1b[31md\u202ee\ud800f\u2028g\x85h") == "a b c [31md e f g h"


def test_stored_text_is_cut_with_a_mark() -> None:
    """An endless reply keeps its start, and shows that it was cut."""
    assert storable("x" * 5000) == "x" * 999 + "…"
    assert storable("x" * 1000) == "x" * 1000
