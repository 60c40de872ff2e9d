"""Reads received mails for people. Nothing in a mail is trusted, and no mail is too broken to show.

What comes out is plain text for a page that never treats it as anything else, except for the HTML,
which goes into a sandbox of its own.
"""

from __future__ import annotations

import email
import email.policy
import re
from dataclasses import dataclass
from email.header import decode_header
from email.message import Message

__all__ = ["Attachment", "ReadMail", "header", "header_text", "read"]

#: Headers above this many bytes aren't looked at.
HEAD_LIMIT = 256 * 1024

_HEAD_END = re.compile(rb"\r?\n\r?\n")
_FOLD = re.compile(r"\r?\n(?=[ \t])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
#: Header names are few; a mail can't grow this, only our own code can.
_PATTERNS: dict[str, re.Pattern[bytes]] = {}


@dataclass(frozen=True, slots=True)
class Attachment:
    """A part that is neither the text nor the HTML; `size` in bytes."""

    name: str
    content_type: str
    size: int


@dataclass(frozen=True, slots=True)
class ReadMail:
    """A mail as it is shown: headers in their order, and the bodies, if it has them."""

    headers: list[tuple[str, str]]
    text: str | None
    html: str | None
    attachments: list[Attachment]


def header(content: bytes, name: str) -> str | None:
    """The first header of a name as it is written, unfolded. Much cheaper than parsing the mail."""
    pattern = _PATTERNS.get(name)
    if pattern is None:
        written = rb"^" + re.escape(name.encode()) + rb"[ \t]*:((?:[^\r\n]|\r?\n[ \t])*)"
        pattern = _PATTERNS[name] = re.compile(written, re.IGNORECASE | re.MULTILINE)
    end = _HEAD_END.search(content, 0, HEAD_LIMIT)
    found = pattern.search(content, 0, end.start() if end else HEAD_LIMIT)
    if found is None:
        return None
    return _FOLD.sub("", found[1].decode("utf-8", "replace")).strip()


def header_text(content: bytes, name: str) -> str:
    """The first header of a name with its encoded words (RFC 2047) read; empty if there is none."""
    return decoded(header(content, name) or "")


def decoded(value: str) -> str:
    """A header's value with its encoded words read as far as they can be, on one line."""
    if "=?" not in value:
        return shown(value)
    try:
        parts = decode_header(value)
    except Exception:  # noqa: BLE001 - a hostile value may break the parser in any way
        return shown(value)
    texts = [
        part if isinstance(part, str) else _decode(part, charset or "utf-8")
        for part, charset in parts
    ]
    return shown("".join(texts))


def shown(text: str) -> str:
    """Without characters that would change how the rest is shown."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", _FOLD.sub("", text)).strip()


def read(content: bytes) -> ReadMail:
    """Takes a mail apart. Whatever can't be read is left out, never an exception."""
    try:
        # compat32: the newer policies parse header values too, and raise on some of them.
        message = email.message_from_bytes(content, policy=email.policy.compat32)
        headers = [(shown(name), decoded(str(value))) for name, value in message.items()]
        text, html, attachments = _bodies(message)
    except Exception:  # noqa: BLE001 - as above; the source can still be looked at
        return ReadMail([], content.decode("utf-8", "replace"), None, [])
    return ReadMail(headers, text, html, attachments)


def _bodies(
    message: Message[str, str],
) -> tuple[str | None, str | None, list[Attachment]]:
    bodies: dict[str, str] = {}
    attachments = []
    for part in message.walk():
        if part.is_multipart():
            continue
        kind = part.get_content_type()
        payload = part.get_payload(decode=True)
        data = payload if isinstance(payload, bytes) else b""
        name = part.get_filename()
        attached = name is not None or part.get_content_disposition() == "attachment"
        if kind in ("text/plain", "text/html") and kind not in bodies and not attached:
            bodies[kind] = _decode(data, part.get_content_charset() or "utf-8")
        else:
            attachments.append(Attachment(decoded(name or "without a name"), kind, len(data)))
    return bodies.get("text/plain"), bodies.get("text/html"), attachments


def _decode(data: bytes, charset: str) -> str:
    try:
        return data.decode(charset, "replace")
    except (LookupError, ValueError):  # no such character set, or one that isn't for text
        return data.decode("utf-8", "replace")
