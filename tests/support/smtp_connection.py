"""One client's connection to the scripted SMTP server."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hmac
import re
import socket
import struct
from typing import TYPE_CHECKING

from tests.support.smtp_rules import Rule, Stage

if TYPE_CHECKING:
    from tests.support.smtp_server import ScriptedServer


class GoneError(Exception):
    """The connection is over."""


class Connection:
    """One client, served by one thread."""

    def __init__(
        self, server: ScriptedServer, connected: socket.socket, number: int, *, too_many: bool
    ) -> None:
        self.server = server
        self.socket = connected
        self.number = number
        self.too_many = too_many
        self.message = 0
        self.encrypted = False
        self.greeted = False
        self.logged_in = False
        self.sender: str | None = None
        self.recipients: list[str] = []
        self._buffer = b""

    def run(self) -> None:
        if self.server.security == "tls":
            self._encrypt()
        if self.too_many:
            self._send_reply("421 4.7.0 Too many connections")
            raise GoneError
        self._answer("connect", "220 scripted.test ESMTP")
        while True:
            line = self._read_line()
            verb, _, rest = line.partition(" ")
            handler = getattr(self, f"_on_{verb.lower()}", None)
            if handler is None:
                self._send_reply("500 5.5.2 What?")
            else:
                handler(rest)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    # -- commands --------------------------------------------------------------------------

    def _on_ehlo(self, rest: str) -> None:
        features = list(self.server.extensions)
        if self.server.security == "starttls" and not self.encrypted:
            features.append("STARTTLS")
        elif self.server.credentials:
            features.append(f"AUTH {self.server.mechanisms}")
        if self._answer("ehlo", "250 " + "\n".join(["scripted.test", *features])):
            self.greeted = bool(rest)
            self._forget()

    def _on_helo(self, _: str) -> None:
        if self._answer("ehlo", "250 scripted.test"):
            self.greeted = True
            self._forget()

    def _on_starttls(self, _: str) -> None:
        if self.server.security != "starttls" or self.encrypted:
            self._send_reply("502 5.5.1 Not here")
        elif self._answer("starttls", "220 2.0.0 Go ahead"):
            self._encrypt()
            self.greeted = False

    def _on_auth(self, rest: str) -> None:
        self.server.count_login(self.number)
        mechanism, _, initial = rest.partition(" ")
        if mechanism.upper() not in self.server.mechanisms.split():
            self._send_reply("504 5.5.4 Not that one")
            return
        if mechanism.upper() == "PLAIN":
            right = self._plain(initial) == self.server.credentials
        elif mechanism.upper() == "LOGIN":
            name = _decode(initial) if initial else self._ask("Username:")
            right = (name, self._ask("Password:")) == self.server.credentials
        else:
            challenge = "<1.1@scripted.test>"
            right = self._ask(challenge) == self._digest(challenge)
        usual = "235 2.7.0 Welcome" if right else "535 5.7.8 Wrong name or password"
        if self._answer("auth", usual):
            self.logged_in = right

    def _plain(self, initial: str) -> tuple[str, str]:
        if not initial:
            self._send_reply("334 ")
            initial = self._read_line()
        parts = _decode(initial).split("\0")
        return (parts[1], parts[2]) if len(parts) == 3 else ("", "")

    def _digest(self, challenge: str) -> str:
        name, password = self.server.credentials or ("", "")
        return f"{name} {hmac.new(password.encode(), challenge.encode(), 'md5').hexdigest()}"

    def _ask(self, question: str) -> str:
        self._send_reply("334 " + base64.b64encode(question.encode()).decode())
        return _decode(self._read_line())

    def _on_mail(self, rest: str) -> None:
        match = re.match(r"(?i)FROM:<([^>]*)>", rest)
        self.message = self.server.begin_message()
        if not self.greeted:
            self._send_reply("503 5.5.1 Say EHLO first")
        elif self.server.credentials and not self.logged_in:
            self._send_reply("530 5.7.0 Log in first")
        elif self.sender is not None:
            self._send_reply("503 5.5.1 Nested MAIL command")
        elif match is None:
            self._send_reply("501 5.1.7 Bad sender")
        elif self._answer("mail", "250 2.1.0 Sender fine"):
            self.sender = match[1]

    def _on_rcpt(self, rest: str) -> None:
        match = re.match(r"(?i)TO:<([^>]+)>", rest)
        if self.sender is None:
            self._send_reply("503 5.5.1 MAIL first")
        elif match is None:
            self._send_reply("501 5.1.3 Bad recipient")
        else:
            self.recipients.append(match[1])
            if not self._answer("rcpt", "250 2.1.5 Recipient fine"):
                self.recipients.pop()

    def _on_data(self, _: str) -> None:
        if not self.recipients:
            self._send_reply("503 5.5.1 RCPT first")
        elif self._answer("data", "354 Go ahead"):
            self._receive_content()

    def _receive_content(self) -> None:
        self._before("body")
        # The line end of the 354 exchange counts: a content of nothing is "." alone.
        received = bytearray(b"\r\n" + self._buffer)
        searched = 0
        while (end := received.find(b"\r\n.\r\n", searched)) < 0:
            searched = max(0, len(received) - 4)
            self._buffer = b""
            self._read_more()
            received += self._buffer
        content = bytes(received[2 : end + 2])
        self._buffer = bytes(received[end + 5 :])
        content = re.sub(rb"(?m)^\.", b"", content)
        sender, recipients = self.sender or "", list(self.recipients)
        if re.search(rb"\r(?!\n)|(?<!\r)\n", content):
            usual = "550 5.6.11 Bare CR or LF in the content"
        else:
            usual = "250"
        if self._answer("dot", usual, silent=usual == "250"):
            self.server.accept_message(self.number, sender, recipients, content)
            self._answer("reply", "250 2.0.0 Accepted")
        self._forget()

    def _on_rset(self, _: str) -> None:
        if self._answer("rset", "250 2.0.0 Reset"):
            self._forget()

    def _on_noop(self, _: str) -> None:
        self._answer("noop", "250 2.0.0 Fine")

    def _on_quit(self, _: str) -> None:
        self.server.forget_connection(self.number)
        self._answer("quit", "221 2.0.0 Bye")
        raise GoneError

    def _forget(self) -> None:
        self.sender = None
        self.recipients = []

    # -- rules -----------------------------------------------------------------------------

    def _before(self, stage: Stage) -> None:
        """A stage without a reply of its own: the rule's reply or close ends the connection."""
        rule = self._find(stage)
        if rule is not None and self._play(rule):
            raise GoneError

    def _answer(self, stage: Stage, usual: str, *, silent: bool = False) -> bool:
        """Replies by the rule or as usual; True if that was a 2xx or 3xx."""
        rule = self._find(stage)
        if rule is not None and self._play(rule):
            return rule.reply is not None and rule.reply[:1] in "23"
        if not silent:
            self._send_reply(usual, rule.drip if rule else 0.0)
        return usual[:1] in "23"

    def _find(self, stage: Stage) -> Rule | None:
        self.server.event(
            "stage", stage=stage, connection=self.number, recipients=list(self.recipients)
        )
        return self.server.find_rule(stage, self.number, self.message, self.recipients)

    def _play(self, rule: Rule) -> bool:
        """Does what the rule says; False if the usual reply is still to be sent."""
        if rule.delay:
            self.server.wait_while_running(rule.delay)
        if rule.hold:
            self.server.hold(rule.hold)
        if rule.reply is not None:
            self._send_reply(rule.reply, rule.drip)
        if rule.raw is not None:
            self._send(rule.raw, rule.drip)
        if rule.do == "silence":
            self._wait_for_end()
        if rule.do == "reset":
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.socket.close()
            raise GoneError
        if rule.do == "close" or (rule.reply or "").startswith("421"):
            raise GoneError
        return rule.reply is not None or rule.raw is not None

    def _wait_for_end(self) -> None:
        while True:
            self._read_more()

    # -- bytes -----------------------------------------------------------------------------

    def _encrypt(self) -> None:
        assert self.server.tls_context is not None
        self._buffer = b""
        self.socket = self.server.tls_context.wrap_socket(self.socket, server_side=True)
        self.encrypted = True
        self.server.replace_socket(self.number, self.socket)

    def _read_more(self) -> None:
        received = self.socket.recv(65536)
        if not received:
            raise GoneError
        self._buffer += received

    def _read_line(self) -> str:
        while b"\n" not in self._buffer:
            self._read_more()
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line.rstrip(b"\r").decode("utf-8", "replace")

    def _send_reply(self, text: str, drip: float = 0.0) -> None:
        code, _, rest = text.partition(" ")
        lines = rest.split("\n")
        reply = "".join(f"{code}-{line}\r\n" for line in lines[:-1]) + f"{code} {lines[-1]}\r\n"
        self._send(reply.encode("utf-8"), drip)

    def _send(self, data: bytes, drip: float) -> None:
        if not drip:
            self.socket.sendall(data)
            return
        for each in data:
            self.socket.sendall(bytes([each]))
            self.server.wait_while_running(drip)


def _decode(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode("utf-8", "replace")
    except binascii.Error:
        return ""
