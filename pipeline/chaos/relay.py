"""A mail server with moods, which remembers what it really took and what it refused."""

from __future__ import annotations

import contextlib
import email
import email.policy
import random
import re
import socket
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from .plan import Mood

#: What a notification of ours is recognised by, in a mail's text.
TOKEN = re.compile(r"\bn\d+x\d+x\d+\b")

#: A silent server is silent for so long, in seconds: longer than any timeout of the run.
SILENCE = 30.0


@dataclass(frozen=True, slots=True)
class Taken:
    """A mail that the server took, whether or not its reply arrived.

    Attributes:
      at: Seconds since the server's start.
      tokens: The notifications that its text tells of.
      mood: What the server was like.
    """

    at: float
    message_id: str
    recipient: str
    tokens: frozenset[str]
    mood: Mood


class _Gone(Exception):
    """The connection is over."""


class MoodyRelay:
    """An SMTP server on loopback that takes everything, when it is in the mood.

    Parameters:
      seed: For what it does by chance. Which client meets it is not repeatable.
    """

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(f"{seed} relay")
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._started_at = time.monotonic()
        self._open: set[socket.socket] = set()
        self._is_closed = threading.Event()
        self.port: int = self._listener.getsockname()[1]
        self.mood = Mood.WELL
        self._taken: list[Taken] = []
        self._refused: set[str] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def taken(self) -> list[Taken]:
        """What it took so far, in that order."""
        with self._lock:
            return list(self._taken)

    @property
    def taken_count(self) -> int:
        """How many mails it took so far."""
        return len(self._taken)

    @property
    def refused(self) -> frozenset[str]:
        """Recipients and Message-IDs that it refused for good."""
        with self._lock:
            return frozenset(self._refused)

    def close(self) -> None:
        """End all connections and take no more."""
        self._is_closed.set()
        self._listener.close()
        with self._lock:
            connections = list(self._open)
        for each in connections:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def chance(self, share: float) -> bool:
        """True so often."""
        with self._lock:
            return self._draw.random() < share

    def wait(self, seconds: float) -> None:
        """Wait, but not beyond the server's end."""
        self._is_closed.wait(seconds)

    def take(self, recipient: str, content: bytes, mood: Mood) -> None:
        """Remember a mail as taken: must come before the reply."""
        message = email.message_from_bytes(content, policy=email.policy.default)
        body = message.get_body(("plain",))
        text = "" if body is None else str(body.get_content())
        one = Taken(
            time.monotonic() - self._started_at,
            str(message["Message-ID"] or ""),
            recipient,
            frozenset(TOKEN.findall(text)),
            mood,
        )
        with self._lock:
            self._taken.append(one)

    def refuse(self, what: str) -> None:
        """Remember what was refused for good."""
        with self._lock:
            self._refused.add(what)

    def _accept(self) -> None:
        while not self._is_closed.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with self._lock:
            self._open.add(client)
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _Talk(self, client).run()
        except (OSError, _Gone):
            pass
        finally:
            with self._lock:
                self._open.discard(client)
            client.close()


class _Talk:
    """One connection."""

    def __init__(self, relay: MoodyRelay, client: socket.socket) -> None:
        self.relay = relay
        self.client = client
        self.lines = client.makefile("rb")
        self.has_sender = False
        self.recipient = ""

    def run(self) -> None:
        """Answer commands until the client has gone."""
        if self.relay.mood is Mood.BUSY:
            self._say("421 4.3.2 Too busy")
            return
        self._say("220 chaos ESMTP")
        while line := self.lines.readline(4096):
            verb = line[:4].upper()
            if verb == b"QUIT":
                self._say("221 2.0.0 Bye")
                return
            if verb in (b"EHLO", b"HELO"):
                # Some of its connections take several commands at once.
                more = "250-PIPELINING\r\n" if self.relay.chance(0.5) else ""
                self._say(f"250-chaos\r\n250-8BITMIME\r\n{more}250 ENHANCEDSTATUSCODES")
            elif verb == b"MAIL":
                self._mail()
            elif verb == b"RCPT":
                self._rcpt(line)
            elif verb == b"DATA":
                self._data()
            elif verb in (b"RSET", b"NOOP"):
                self.has_sender, self.recipient = False, ""
                self._say("250 2.0.0 OK")
            else:
                self._say("502 5.5.1 Not here")

    def _mail(self) -> None:
        mood = self._troubles()
        self.has_sender, self.recipient = False, ""
        if mood is Mood.BUSY:
            self._say("421 4.3.2 Closing")
            raise _Gone
        if mood is Mood.FULL and self.relay.chance(0.5):
            self._say("452 4.3.1 No room")
        else:
            self.has_sender = True
            self._say("250 2.1.0 OK")

    def _rcpt(self, line: bytes) -> None:
        mood = self._troubles()
        recipient = line.partition(b"<")[2].partition(b">")[0].decode("latin-1")
        if not self.has_sender:
            self._say("503 5.5.1 MAIL first")
        elif mood is Mood.GREYLISTING and self.relay.chance(0.7):
            self._say("451 4.7.1 Come back later")
        elif mood is Mood.REFUSING and self.relay.chance(0.1):
            self.relay.refuse(recipient)
            self._say("550 5.1.1 Unknown")
        else:
            self.recipient = recipient
            self._say("250 2.1.5 OK")

    def _data(self) -> None:
        mood = self._troubles()
        if not self.recipient and self.relay.chance(0.7):
            self._say("503 5.5.1 RCPT first")
            return
        # Or it asks for the content of a mail that it has refused, as some do.
        self._say("354 Go on")
        content = bytearray()
        while (line := self.lines.readline(1 << 16)) != b".\r\n":
            if not line or (mood is Mood.DROPPING and self.relay.chance(0.01)):
                raise _Gone
            content += line[1:] if line.startswith(b"..") else line
        self._dot(bytes(content))

    def _dot(self, content: bytes) -> None:
        mood, chance = self.relay.mood, self.relay.chance
        if not self.recipient:
            self._say("554 5.5.1 No valid recipients")
        elif mood is Mood.REFUSING and chance(0.1):
            found = re.search(rb"(?mi)^message-id:\s*(\S+)", content)
            self.relay.refuse(found[1].decode("latin-1") if found else "")
            self._say("554 5.6.0 Not this")
        elif mood is Mood.FULL and chance(0.5):
            self._say("452 4.3.1 No room")
        elif mood is Mood.DROPPING and chance(0.2):
            raise _Gone
        else:
            self.relay.take(self.recipient, content, mood)
            if mood is Mood.LOSING and chance(0.5):
                raise _Gone
            if mood is Mood.SILENT and chance(0.3):
                self.relay.wait(SILENCE)
            if mood is Mood.GARBLED and chance(0.3):
                self._say("2\x00 \xff what")
                raise _Gone
            self._say("250 2.0.0 Taken")

    def _troubles(self) -> Mood:
        """What happens whatever the command is."""
        mood = self.relay.mood
        if mood is Mood.SLOW:
            self.relay.wait(0.2)
        elif mood is Mood.SILENT and self.relay.chance(0.1):
            self.relay.wait(SILENCE)
        elif mood is Mood.DROPPING and self.relay.chance(0.1):
            raise _Gone
        elif mood is Mood.GARBLED and self.relay.chance(0.1):
            self._say("9x\x00 \xff" + "y" * 600)
        return mood

    def _say(self, reply: str) -> None:
        self.client.sendall(reply.encode("latin-1") + b"\r\n")
