"""What an SMTP server's answer means: for this message, this address or the whole relay.

Nothing here touches a socket. `parse_reply` reads a reply's lines, `classify` sorts it by the stage
at which it came. A stage without an answer (dropped, timed out, garbage) is sorted too: before the
final dot the message is known not to have been accepted, after it nobody knows (RFC 1047).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "Outcome",
    "Reply",
    "Scope",
    "Stage",
    "Verdict",
    "classify",
    "ends_reply",
    "parse_broken_reply",
    "parse_reply",
    "storable",
]

#: Longest text kept of a reply or an error, in characters.
TEXT_LIMIT = 1000

#: Codes that ask for a login, or refuse it, wherever they come (RFC 4954 section 6).
LOGIN_CODES = frozenset({530, 534, 535, 538})

_LINE = re.compile(rb"(\d{3})(?!\d)([ \t-]?)(.*)", re.DOTALL)
_ENHANCED = re.compile(r"([245]\.\d{1,3}\.\d{1,3})(?:\s+|$)")


class Stage(StrEnum):
    """How far an attempt had come, in this order."""

    PREPARE = "prepare"
    CONNECT = "connect"
    MAIL = "mail"
    RCPT = "rcpt"
    DATA = "data"
    DOT = "dot"
    REPLY = "reply"


class Outcome(StrEnum):
    """How an attempt ended."""

    SENT = "sent"
    DEFERRED = "deferred"
    FAILED = "failed"
    UNCERTAIN = "uncertain"
    ABANDONED = "abandoned"


class Scope(StrEnum):
    """What the outcome is about: trouble of the relay uses up no delivery's attempts."""

    MESSAGE = "message"
    ADDRESS = "address"
    RELAY = "relay"


@dataclass(frozen=True, slots=True)
class Reply:
    """A server's reply: `code` (RFC 5321 section 4.2), `enhanced_code` such as `5.1.1` (RFC 3463)
    if it gave one, and the `text` after both, on one line and fit for storage."""

    code: int
    enhanced_code: str | None
    text: str

    def __str__(self) -> str:
        parts = (f"{self.code:03}", self.enhanced_code, self.text)
        return " ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do with a delivery, and what is to blame."""

    outcome: Outcome
    scope: Scope


_RELAY_DEFERRED = Verdict(Outcome.DEFERRED, Scope.RELAY)
_ADDRESS_DEFERRED = Verdict(Outcome.DEFERRED, Scope.ADDRESS)
_ADDRESS_FAILED = Verdict(Outcome.FAILED, Scope.ADDRESS)
_MESSAGE_DEFERRED = Verdict(Outcome.DEFERRED, Scope.MESSAGE)
_MESSAGE_FAILED = Verdict(Outcome.FAILED, Scope.MESSAGE)
_SENT = Verdict(Outcome.SENT, Scope.MESSAGE)
_UNCERTAIN = Verdict(Outcome.UNCERTAIN, Scope.MESSAGE)


def classify(stage: Stage, reply: Reply | None) -> Verdict:
    """Sorts what ended an attempt.

    Parameters:
      stage: where it ended. `DOT` and `REPLY` mean that the final dot may be with the server.
      reply: the server's answer there; None if the connection was dropped, the time was up, or
        what came was no reply.

    Returns:
      The verdict. Before the dot an answer that isn't a refusal (a 2xx where none belongs) counts
      as none; after it only 2xx, 4xx and 5xx are definite, and everything else is uncertain.
    """
    if stage in (Stage.DOT, Stage.REPLY):
        return _after_the_dot(reply)
    if stage is Stage.CONNECT:
        # Whatever a relay says before the first MAIL it says to every message.
        return _RELAY_DEFERRED
    if reply is None or reply.code // 100 not in (4, 5):
        return _RELAY_DEFERRED if stage is Stage.MAIL else _MESSAGE_DEFERRED
    if reply.code == 421:
        return _RELAY_DEFERRED
    if stage is Stage.MAIL:
        return _about_the_sender(reply)
    if _asks_for_login(reply):
        return _RELAY_DEFERRED
    permanent = reply.code >= 500
    if stage is Stage.RCPT:
        return _ADDRESS_FAILED if permanent else _ADDRESS_DEFERRED
    return _MESSAGE_FAILED if permanent else _MESSAGE_DEFERRED


def _after_the_dot(reply: Reply | None) -> Verdict:
    if reply is None:
        return _UNCERTAIN
    if reply.code == 421:
        return _RELAY_DEFERRED
    verdicts = {2: _SENT, 4: _MESSAGE_DEFERRED, 5: _MESSAGE_FAILED}
    return verdicts.get(reply.code // 100, _UNCERTAIN)


def _about_the_sender(reply: Reply) -> Verdict:
    """MAIL names our sender under our login, which are the same for every message."""
    enhanced = reply.enhanced_code or ""
    if reply.code >= 500:
        # Only the size is this message's own.
        too_big = reply.code == 552 or enhanced == "5.3.4" or enhanced.startswith("5.2.")
        return _MESSAGE_FAILED if too_big else _RELAY_DEFERRED
    if enhanced:
        of_relay = enhanced.startswith(("4.3.", "4.4.", "4.7."))
    else:
        of_relay = reply.code in (452, 454)
    return _RELAY_DEFERRED if of_relay else _MESSAGE_DEFERRED


def _asks_for_login(reply: Reply) -> bool:
    return reply.code in LOGIN_CODES or reply.enhanced_code == "5.7.0"


def ends_reply(line: bytes) -> bool:
    """Whether no line of the same reply follows this one. A line that is no reply ends it too."""
    match = _LINE.match(line)
    return match is None or match[2] != b"-"


def parse_reply(lines: Sequence[bytes]) -> Reply | None:
    """Reads the lines of one reply, without their line ends.

    Returns:
      The reply, or None if that is not one: no lines, no three-digit code, or two codes that
      contradict each other (RFC 5321 section 4.2.1 wants the same on every line).
    """
    matches = [_LINE.match(line) for line in lines]
    codes = {match and match[1] for match in matches}
    if len(codes) != 1 or None in codes:
        return None
    texts = [match[3].decode("utf-8", "replace").strip() for match in matches if match]
    found = _ENHANCED.match(texts[0])
    enhanced = found[1] if found else None
    if enhanced:
        texts = [_without(text, enhanced) for text in texts]
    return Reply(int(lines[0][:3]), enhanced, storable(" ".join(filter(None, texts))))


def parse_broken_reply(lines: Sequence[bytes], rest: bytes) -> Reply | None:
    """Reads what there is of a reply that broke off: whole lines and the start of another.

    Returns:
      The reply as far as it came if its code is definite, else None.
    """
    return parse_reply([*lines, rest] if _LINE.match(rest) else lines)


def _without(text: str, enhanced: str) -> str:
    found = _ENHANCED.match(text)
    return text[found.end() :] if found and found[1] == enhanced else text


def storable(text: str, limit: int = TEXT_LIMIT) -> str:
    """Makes foreign text fit to be stored, logged and shown on one line of a terminal.

    Postgres takes no NUL and no lone surrogate, and control or direction characters can rewrite
    what an operator sees: each becomes a space, runs of white space become one.
    """
    # Cut first: a hostile reply may be long, and cleaning is the slow part.
    text = text[: limit * 4]
    kept = "".join(" " if unicodedata.category(each) in _UNFIT else each for each in text)
    kept = " ".join(kept.split())
    return kept if len(kept) <= limit else kept[: limit - 1] + "…"


#: Unicode categories: control, format, surrogate, line and paragraph separators.
_UNFIT = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
