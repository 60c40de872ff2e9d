"""The inbox's SMTP side: takes every message from everybody, for everybody.

A protocol of its own, because it is small and fast: a general server reads a message line by line,
this one looks for its end. It speaks what a client may expect of a submission server without TLS
(RFC 5321, pipelining, 8-bit content, international addresses) and accepts any login.
"""

from __future__ import annotations

import asyncio
import re

from pipeline.inbox.mailbox import Mailbox

__all__ = ["SIZE_LIMIT", "ReceivingProtocol"]

#: Largest message taken, in bytes.
SIZE_LIMIT = 32 * 1024 * 1024
#: Longest command line, in bytes; far above what RFC 5321 section 4.5.3.1.4 asks for.
LINE_LIMIT = 8 * 1024
#: Most bytes of replies that may wait for a client that doesn't read them.
UNREAD_LIMIT = 64 * 1024
#: Most recipients of one message (RFC 5321 section 4.5.3.1.8 asks for 100).
RECIPIENT_LIMIT = 1_000

END = b"\r\n.\r\n"

_LEADING_DOTS = re.compile(rb"^\.", re.MULTILINE)
_PATH = re.compile(r"(FROM|TO):[ ]*<([^<>]*)>(?: .*)?", re.IGNORECASE)
_EXTENSIONS = (
    "inbox.localhost",
    f"SIZE {SIZE_LIMIT}",
    "8BITMIME",
    "SMTPUTF8",
    "PIPELINING",
    "ENHANCEDSTATUSCODES",
    "AUTH PLAIN LOGIN",
)


class ReceivingProtocol(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, mailbox: Mailbox) -> None:
        self.mailbox = mailbox
        self._transport: asyncio.WriteTransport | None = None
        self._buffer = bytearray()
        self._searched = 0
        self._in_content = False
        self._too_big = False
        self._login_questions: list[str] | None = None
        self._forget()

    def _forget(self) -> None:
        self._mail_from: str | None = None
        self._rcpt_to: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        self._reply("220 inbox.localhost ESMTP Development inbox")

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while self._buffer and not self._closing():
            if not (self._take_content() if self._in_content else self._take_line()):
                return

    def _closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    # -- commands --------------------------------------------------------------------------

    def _take_line(self) -> bool:
        """Obeys one command; False if it hasn't come whole."""
        end = self._buffer.find(b"\n", self._searched)
        if end < 0:
            self._searched = len(self._buffer)
            if self._searched > LINE_LIMIT:
                self._reply("500 5.5.2 The line is too long")
                self._close()
            return False
        line = self._buffer[:end].rstrip(b"\r").decode("utf-8", "replace")
        del self._buffer[: end + 1]
        self._searched = 0
        if self._login_questions is not None:
            self._answered(line)
            return True
        verb, _, rest = line.partition(" ")
        command = self._COMMANDS.get(verb.upper())
        if command is None:
            self._reply("500 5.5.2 This command is not known here")
        else:
            command(self, rest.strip())
        return True

    def _greet(self, _: str) -> None:
        self._forget()
        lines = "".join(f"250-{line}\r\n" for line in _EXTENSIONS[:-1])
        self._reply(f"{lines}250 {_EXTENSIONS[-1]}")

    def _greet_plainly(self, _: str) -> None:
        self._forget()
        self._reply("250 inbox.localhost")

    def _log_in(self, rest: str) -> None:
        mechanism, _, initial = rest.partition(" ")
        if mechanism.upper() == "PLAIN":
            self._login_questions = [""]
        elif mechanism.upper() == "LOGIN":
            self._login_questions = ["VXNlcm5hbWU6", "UGFzc3dvcmQ6"]
        else:
            self._reply("504 5.5.4 Only PLAIN and LOGIN")
            return
        if initial:
            self._login_questions.pop(0)
        self._ask()

    def _ask(self) -> None:
        if self._login_questions:
            self._reply(f"334 {self._login_questions[0]}")
        else:
            self._login_questions = None
            self._reply("235 2.7.0 Welcome, whoever you are")

    def _answered(self, answer: str) -> None:
        assert self._login_questions is not None
        if answer == "*":
            self._login_questions = None
            self._reply("501 5.7.0 As you like")
        else:
            self._login_questions.pop(0)
            self._ask()

    def _mail(self, rest: str) -> None:
        path = _PATH.fullmatch(rest)
        if path is None or path[1].upper() != "FROM":
            self._reply("501 5.1.7 MAIL FROM:<address> is what it takes")
        elif self._mail_from is not None:
            self._reply("503 5.5.1 There is a sender already")
        else:
            self._mail_from = path[2]
            self._reply("250 2.1.0 Fine")

    def _rcpt(self, rest: str) -> None:
        path = _PATH.fullmatch(rest)
        if self._mail_from is None:
            self._reply("503 5.5.1 MAIL comes first")
        elif path is None or path[1].upper() != "TO" or not path[2]:
            self._reply("501 5.1.3 RCPT TO:<address> is what it takes")
        elif len(self._rcpt_to) >= RECIPIENT_LIMIT:
            self._reply("452 4.5.3 Too many recipients")
        else:
            self._rcpt_to.append(path[2])
            self._reply("250 2.1.5 Fine")

    def _data(self, _: str) -> None:
        if not self._rcpt_to:
            self._reply("503 5.5.1 MAIL and RCPT come first")
        else:
            self._in_content = True
            self._too_big = False
            # The line end before the content counts too: an empty one is a dot alone.
            self._buffer[:0] = b"\r\n"
            self._reply("354 End with a dot alone on a line")

    def _reset(self, _: str) -> None:
        self._forget()
        self._reply("250 2.0.0 Forgotten")

    def _noop(self, _: str) -> None:
        self._reply("250 2.0.0 Fine")

    def _verify(self, _: str) -> None:
        self._reply("252 2.5.1 Everybody has a place here")

    def _quit(self, _: str) -> None:
        self._reply("221 2.0.0 Bye")
        self._close()

    _COMMANDS = {  # noqa: RUF012 - a table, never changed
        "EHLO": _greet,
        "HELO": _greet_plainly,
        "AUTH": _log_in,
        "MAIL": _mail,
        "RCPT": _rcpt,
        "DATA": _data,
        "RSET": _reset,
        "NOOP": _noop,
        "VRFY": _verify,
        "QUIT": _quit,
    }

    # -- content ---------------------------------------------------------------------------

    def _take_content(self) -> bool:
        """Takes a message; False if its end hasn't come."""
        end = self._buffer.find(END, self._searched)
        if end < 0:
            if len(self._buffer) > SIZE_LIMIT:
                # Read on to its end, without keeping it.
                self._too_big = True
                del self._buffer[: -len(END)]
            self._searched = max(0, len(self._buffer) - len(END) + 1)
            return False
        content = bytes(self._buffer[2 : end + 2])
        del self._buffer[: end + len(END)]
        self._searched = 0
        self._in_content = False
        if self._too_big or len(content) > SIZE_LIMIT:
            self._reply("552 5.3.4 The message is too big")
        else:
            content = _LEADING_DOTS.sub(b"", content)
            mail = self.mailbox.add(self._mail_from or "", self._rcpt_to, content)
            self._reply(f"250 2.0.0 Taken as number {mail.number}")
        self._forget()
        return True

    def _reply(self, text: str) -> None:
        if self._transport is None:
            return
        self._transport.write(text.encode() + b"\r\n")
        if self._transport.get_write_buffer_size() > UNREAD_LIMIT:
            self._transport.abort()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()
