"""A scripted SMTP server that speaks real SMTP over real sockets.

It accepts everything unless a rule says otherwise, and it counts what it did. In a test:

    with ScriptedServer(rules=[Rule("rcpt", reply="451 4.7.1 Try later", times=1)]) as server:
        ...                                     # server.url is "smtp://127.0.0.1:PORT"
        server.wait_for_accepted(1)
        assert server.accepted[0].recipients == ["ada@example.org"]

and as a process of its own (rules as JSON; the file is read again whenever it changes):

    python -m tests.support.smtp_server --port 2525 --script rules.json --record accepted.jsonl

`--record` appends one JSON line for each accepted message *before* the reply is sent, in a single
unbuffered write, so that it counts right whoever is killed: keys `at`, `connection`, `from`, `to`,
`message_id`, `subject`, `content` (bytes read as Latin-1; left out with `--without-content`).
`--events FILE` appends `{"event": "connection" | "login" | "stage", ...}` lines the same way.
The process prints `listening on 127.0.0.1:PORT` when it is ready.

**Stages**, in the order in which they come: `connect` (before the banner), `ehlo`, `starttls`,
`auth`, `mail`, `rcpt`, `data` (the DATA command), `body` (content is on its way), `dot` (the final
dot was read, nothing accepted yet), `reply` (accepted and recorded, the 250 not yet sent); also
`rset`, `noop`, `quit`. So "the reply after the dot is lost" is `Rule("reply", do="close")`, and
"drops the mail with the connection" is `Rule("dot", do="close")`.

A **rule** is looked up when its stage comes; the first one that matches and isn't used up wins:

    which     connection=2         only on the second connection (1-based)
              message=6            only in the sixth mail transaction of the server (1-based)
              recipient="a@b.c"    only when this recipient was named (rcpt and later)
              skip=1, times=3      the first match is let pass, then it applies three times
              per="recipient"      skip and times count per "server", "connection" or "recipient"
    first     delay=2.5            waits so many seconds
              hold="gate"          waits for server.release("gate"), or, when it has a slash,
                                   until a file of that name exists
    then      reply="550 5.1.1 No such user"      "\\n" makes a multi-line reply; 421 also closes
              raw=b"garbage"       sends exactly these bytes (JSON: Latin-1 text)
              drip=0.1             sends the reply byte by byte with such pauses
              do="close"           closes the socket, after the reply or raw if there is one
              do="reset"           the same with a TCP reset
              do="silence"         never answers, until the client leaves or the server stops
    nothing of these: goes on as usual (after a delay or a hold).

A **server** takes besides: `credentials=("user", "password")` (AUTH is offered, with `mechanisms`,
and demanded), `max_connections=2` (421 to the third at once), `security="starttls" | "tls"` (a
certificate for localhost and 127.0.0.1, signed by a test authority: `server.ca_file`),
`record=path`, `keep_content=False` for big runs. `server.url` fits all of that.

Counters: `connection_count`, `open_connection_count`, `most_connections`, `login_count`
(AUTH tries), `accepted`, `accepted_count`, `duplicate_ids()`, `stage_counts["mail"]`, and
`connection_closed`, an event that is set when the server has closed the first one. Actions:
`add(rule)` (before the others), `clear()`, `release(name)`, `wait_until_held(name)`,
`wait_for_accepted(count)`, `go_down()` (the port is closed and its connections dropped),
`come_up()` (the same port again), `drop_connections()`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ClassVar, Literal, Self, get_args

from tests.support.certificates import server_certificate
from tests.support.smtp_connection import Connection, GoneError
from tests.support.smtp_rules import Accepted, Rule, Stage, header, read_record
from tests.support.waiting import PATIENCE

__all__ = ["Accepted", "Rule", "ScriptedServer", "Stage", "read_record"]

Security = Literal["plain", "starttls", "tls"]


class ScriptedServer:
    """The server; a context manager, or `start()` and `stop()`."""

    #: What it offers unless it is told.
    default_extensions: ClassVar[Iterable[str]] = (
        "8BITMIME",
        "ENHANCEDSTATUSCODES",
        "SIZE 10485760",
    )

    def __init__(
        self,
        rules: Iterable[Rule] = (),
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        credentials: tuple[str, str] | None = None,
        mechanisms: str = "PLAIN LOGIN CRAM-MD5",
        max_connections: int | None = None,
        security: Security = "plain",
        record: str | os.PathLike[str] | None = None,
        events: str | os.PathLike[str] | None = None,
        script: str | os.PathLike[str] | None = None,
        keep_content: bool = True,
        extensions: Iterable[str] | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.credentials = credentials
        self.mechanisms = mechanisms
        self.max_connections = max_connections
        self.security = security
        self.keep_content = keep_content
        self.extensions = list(self.default_extensions if extensions is None else extensions)
        self.accepted: list[Accepted] = []
        self.accepted_count = 0
        self.connection_count = 0
        self.login_count = 0
        self.most_connections = 0
        self.message_count = 0
        self.stage_counts: Counter[str] = Counter()
        self.ca_file: str | None = None
        self.tls_context: ssl.SSLContext | None = None
        if security != "plain":
            certificate = server_certificate()
            self.ca_file = certificate.ca_file
            self.tls_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.tls_context.load_cert_chain(certificate.certificate_file, certificate.key_file)
        self._rules = list(rules)
        self._script = Path(script) if script is not None else None
        self._script_stamp: tuple[int, int] | None = None
        self._record = _append_file(record)
        self._events = _append_file(events)
        self.connection_closed = threading.Event()
        self._changed = threading.Condition()
        self._released: set[str] = set()
        self._held: Counter[str] = Counter()
        self._ids: Counter[str] = Counter()
        self._open: dict[int, socket.socket] = {}
        self._listener: socket.socket | None = None
        self._stopping = False

    # -- life ------------------------------------------------------------------------------

    def start(self) -> Self:
        self.come_up()
        return self

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self.go_down()
        for descriptor in (self._record, self._events):
            if descriptor is not None:
                os.close(descriptor)
        self._record = self._events = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def come_up(self) -> None:
        """Listens (again) on the same port."""
        listener = socket.create_server((self.host, self.port), backlog=128)
        self.port = listener.getsockname()[1]
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def go_down(self) -> None:
        """Closes the port, so that connecting is refused, and resets what is open."""
        listener, self._listener = self._listener, None
        if listener is not None:
            # close() alone leaves a thread that is inside accept() listening on.
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.drop_connections()

    def drop_connections(self) -> None:
        """Resets every open connection; new ones are accepted."""
        with self._changed:
            sockets = list(self._open.values())
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    @property
    def url(self) -> str:
        scheme = {"plain": "smtp", "starttls": "smtp+starttls", "tls": "smtps"}[self.security]
        login = ":".join(self.credentials) + "@" if self.credentials else ""
        query = f"?ca_file={self.ca_file}" if self.ca_file else ""
        return f"{scheme}://{login}{self.host}:{self.port}{query}"

    # -- script ----------------------------------------------------------------------------

    def add(self, *rules: Rule) -> None:
        """Adds rules before the others: the newest win."""
        with self._changed:
            self._rules = [*rules, *self._rules]

    def clear(self) -> None:
        with self._changed:
            self._rules = []

    def release(self, name: str) -> None:
        """Lets everything go on that is or will be held at `name`."""
        with self._changed:
            self._released.add(name)
            self._changed.notify_all()

    def wait_until_held(self, name: str, *, count: int = 1, timeout: float = 10.0) -> None:
        """Returns when `count` connections are waiting at `hold=name`."""
        self._wait(lambda: self._held[name] >= count, timeout, f"nobody is held at {name!r}")

    def wait_for_accepted(self, count: int, *, timeout: float = 10.0) -> None:
        self._wait(
            lambda: self.accepted_count >= count, timeout, f"fewer than {count} messages accepted"
        )

    @property
    def open_connection_count(self) -> int:
        with self._changed:
            return len(self._open)

    def duplicate_ids(self) -> dict[str, int]:
        """Message-IDs accepted more than once, with their counts."""
        with self._changed:
            return {name: count for name, count in self._ids.items() if count > 1}

    def _wait(self, condition: Callable[[], bool], timeout: float, complaint: str) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, timeout * PATIENCE):
                raise AssertionError(f"{complaint} after {timeout} s")

    def find_rule(
        self, stage: Stage, connection: int, message: int, recipients: list[str]
    ) -> Rule | None:
        self._reload()
        with self._changed:
            self.stage_counts[stage] += 1
            for rule in self._rules:
                if rule.takes(stage, connection, message, recipients):
                    return rule
        return None

    def _reload(self) -> None:
        if self._script is None:
            return
        try:
            stat = self._script.stat()
            stamp = (stat.st_mtime_ns, stat.st_ino)
            if stamp == self._script_stamp:
                return
            rules = [Rule.from_json(each) for each in json.loads(self._script.read_text())]
        except FileNotFoundError:
            return
        with self._changed:
            self._rules = rules
            self._script_stamp = stamp

    # -- what connections report -----------------------------------------------------------

    def hold(self, name: str) -> None:
        with self._changed:
            self._held[name] += 1
            self._changed.notify_all()
            try:
                while not (
                    self._stopping
                    or name in self._released
                    or ("/" in name and Path(name).exists())
                ):
                    self._changed.wait(0.02 if "/" in name else None)
            finally:
                self._held[name] -= 1

    def event(self, kind: str, **details: object) -> None:
        if self._events is not None:
            line = json.dumps({"event": kind, "at": time.time(), **details})
            os.write(self._events, line.encode() + b"\n")

    def begin_message(self) -> int:
        with self._changed:
            self.message_count += 1
            return self.message_count

    def count_login(self, connection: int) -> None:
        with self._changed:
            self.login_count += 1
        self.event("login", connection=connection)

    def accept_message(
        self, connection: int, sender: str, recipients: list[str], content: bytes
    ) -> None:
        message = Accepted(
            at=time.time(),
            connection=connection,
            sender=sender,
            recipients=list(recipients),
            message_id=header(content, b"message-id"),
            subject=header(content, b"subject"),
            content=content if self.keep_content else b"",
        )
        if self._record is not None:
            line = message.as_json(with_content=self.keep_content)
            os.write(self._record, line.encode() + b"\n")
        with self._changed:
            self.accepted.append(message)
            self.accepted_count += 1
            if message.message_id is not None:
                self._ids[message.message_id] += 1
            self._changed.notify_all()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connected, _ = listener.accept()
            except OSError:
                return
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._changed:
                self.connection_count += 1
                number = self.connection_count
                self._open[number] = connected
                too_many = self.max_connections is not None and (
                    len(self._open) > self.max_connections
                )
                self.most_connections = max(self.most_connections, len(self._open))
                if self._stopping:
                    connected.close()
                    return
            self.event("connection", connection=number)
            connection = Connection(self, connected, number, too_many=too_many)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        try:
            connection.run()
        except (GoneError, OSError):
            pass
        finally:
            self.forget_connection(connection.number)
            connection.close()
            self.connection_closed.set()

    def forget_connection(self, number: int) -> None:
        """Counts it as closed, before the client can notice and come again."""
        with self._changed:
            self._open.pop(number, None)
            self._changed.notify_all()

    def replace_socket(self, number: int, connected: socket.socket) -> None:
        with self._changed:
            self._open[number] = connected

    def wait_while_running(self, seconds: float | None) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, seconds)


def _append_file(path: str | os.PathLike[str] | None) -> int | None:
    if path is None:
        return None
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def main() -> None:
    parser = argparse.ArgumentParser(description="A scripted SMTP server for tests.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--script", help="JSON list of rules; read again when it changes")
    parser.add_argument("--record", help="file that gets a JSON line per accepted message")
    parser.add_argument("--events", help="file that gets a JSON line per connection and stage")
    parser.add_argument("--credentials", help="user:password that must be given")
    parser.add_argument("--max-connections", type=int)
    parser.add_argument("--security", choices=get_args(Security), default="plain")
    parser.add_argument("--without-content", action="store_true")
    options = parser.parse_args()
    name, _, password = (options.credentials or "").partition(":")
    server = ScriptedServer(
        port=options.port,
        credentials=(name, password) if options.credentials else None,
        max_connections=options.max_connections,
        security=options.security,
        record=options.record,
        events=options.events,
        script=options.script,
        keep_content=not options.without_content,
    )
    server.start()
    sys.stdout.write(f"listening on {server.host}:{server.port}\n")
    if server.ca_file:
        sys.stdout.write(f"authority {server.ca_file}\n")
    sys.stdout.flush()
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    server.stop()


if __name__ == "__main__":
    main()
