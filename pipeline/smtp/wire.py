"""One connection to an SMTP server: bytes out, replies in, and a deadline for each.

A socket's own timeout starts anew with every byte, so a server that drips one byte every few
seconds holds a client for ever. Here every call is given the moment at which it must be over. It
tries first and looks at the clock when it would have to wait: what has come in time is read
however late its reader is.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import select
import socket
import ssl
import threading
import time
from collections.abc import Sequence

from pipeline.replies import Reply, ends_reply, parse_broken_reply, parse_reply
from pipeline.smtp.dialogue import Dialogue, Wait

__all__ = [
    "BrokenReplyError",
    "DroppedError",
    "OutOfTimeError",
    "Wire",
    "WireError",
    "WriteError",
    "on_the_wire",
]

#: Longest reply in bytes. RFC 5321 allows lines of 512 and any number of them.
REPLY_LIMIT = 65_536

#: How often it is asked whether a name has been looked up, in seconds.
RESOLVE_PAUSE = 0.005

_LINE_ENDS = re.compile(rb"\r\n|\r|\n")
_LEADING_DOTS = re.compile(rb"^\.", re.MULTILINE)


class WireError(Exception):
    """The connection is of no more use. `reply` is the code that was read before, if any."""

    def __init__(self, message: str, reply: Reply | None = None) -> None:
        super().__init__(message)
        self.reply = reply


class DroppedError(WireError):
    """The server closed the connection, or it broke."""


class BrokenReplyError(WireError):
    """What came was not a reply, or too long for one."""


class OutOfTimeError(WireError):
    """The deadline passed."""


class WriteError(WireError):
    """Sending failed; `untouched` says that the system took not one byte of what was to be sent."""

    def __init__(self, message: str, *, untouched: bool) -> None:
        super().__init__(message)
        self.untouched = untouched


class Wire:
    """A connected socket. Every method raises `WireError` for whatever goes wrong with it.

    A `deadline` is a value of `time.monotonic()`.
    """

    def __init__(self, connected: socket.socket) -> None:
        # Content and dot are written apart: Nagle's algorithm would hold the dot back for 40 ms.
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setblocking(False)
        self._socket = connected
        self._buffer = bytearray()
        self.encrypted = False
        #: The lines of the latest whole reply, without codes and line ends.
        self.texts: list[str] = []

    @classmethod
    def connect(cls, host: str, port: int, deadline: float) -> Dialogue[Wire]:
        """Tries each of the host's addresses until one answers."""
        addresses = yield from _resolve(host, port, deadline)
        failure: OSError | OutOfTimeError = OSError("the name has no address")
        for index, (family, address) in enumerate(addresses):
            # A fair share each, so that one black hole doesn't use up the time of the others.
            share = _left(deadline) / (len(addresses) - index)
            candidate = None
            try:
                candidate = socket.socket(family, socket.SOCK_STREAM)
                candidate.setblocking(False)
                yield from _connected(candidate, address, time.monotonic() + share)
                return cls(candidate)
            except BaseException as error:
                if candidate is not None:
                    candidate.close()
                if not isinstance(error, OSError | OutOfTimeError):
                    raise
                failure = error
        if isinstance(failure, TimeoutError | OutOfTimeError):
            raise OutOfTimeError("no answer in time")
        raise DroppedError(_told(failure))

    def encrypt(self, context: ssl.SSLContext, host: str, deadline: float) -> Dialogue[None]:
        """Starts TLS, with the certificate checked against `host`."""
        if self._buffer:
            # Somebody put plain text where the handshake belongs (CVE-2011-0411).
            raise BrokenReplyError("unencrypted bytes came before the TLS handshake")
        try:
            wrapped = context.wrap_socket(
                self._socket, server_hostname=host, do_handshake_on_connect=False
            )
            self._socket = wrapped
            while True:
                try:
                    wrapped.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    yield from self._wait(select.POLLIN, deadline)
                except ssl.SSLWantWriteError:
                    yield from self._wait(select.POLLOUT, deadline)
        except OutOfTimeError as error:
            raise OutOfTimeError("no answer in time to the TLS handshake") from error
        except ssl.SSLCertVerificationError as error:
            raise DroppedError(f"the certificate was refused: {error.verify_message}") from error
        except (OSError, ValueError) as error:
            raise DroppedError(f"the TLS handshake failed: {_told(error)}") from error
        self.encrypted = True

    def write(self, data: bytes, deadline: float) -> Dialogue[None]:
        """Sends all of it. If the error's `untouched` is true, no byte of it has left."""
        view = memoryview(data)
        sent = 0
        while sent < len(view):
            try:
                sent += self._socket.send(view[sent:])
            except (BlockingIOError, ssl.SSLWantWriteError):
                wanted = select.POLLOUT
            except ssl.SSLWantReadError:
                wanted = select.POLLIN
            except OSError as error:
                raise WriteError(_told(error), untouched=sent == 0) from error
            else:
                continue
            try:
                yield from self._wait(wanted, deadline)
            except OutOfTimeError as error:
                told = "the server took no more bytes in time"
                raise WriteError(told, untouched=sent == 0) from error

    def _wait(self, events: int, deadline: float) -> Dialogue[None]:
        if not (yield Wait(self._socket, events, deadline)):
            raise OutOfTimeError("no answer in time")

    def ask(self, lines: Sequence[str], deadline: float) -> Dialogue[None]:
        """Sends some lines at once, of which each will be replied to."""
        if self._buffer:
            # It would be taken for the answer to this command.
            raise BrokenReplyError("the server answered more than it was asked")
        asked = "".join(f"{line}\r\n" for line in lines)
        yield from self.write(asked.encode("utf-8"), deadline)

    def command(self, line: str, deadline: float) -> Dialogue[Reply]:
        """Sends one line and reads the reply to it."""
        yield from self.ask([line], deadline)
        return (yield from self.read_reply(deadline))

    def read_reply(self, deadline: float) -> Dialogue[Reply]:
        """Reads one reply of any number of lines.

        Raises:
          WireError: with `reply` set if a code came before the connection or the reply broke off.
        """
        lines: list[bytes] = []
        size = 0
        while True:
            try:
                line = yield from self._read_line(deadline, REPLY_LIMIT - size)
            except WireError as error:
                error.reply = parse_broken_reply(lines, bytes(self._buffer))
                raise
            lines.append(line)
            size += len(line)
            if ends_reply(line):
                break
        self.texts = [line[4:].decode("utf-8", "replace").strip() for line in lines]
        reply = parse_reply(lines)
        if reply is None:
            raise BrokenReplyError(f"not an SMTP reply: {b' '.join(lines)[:200]!r}")
        return reply

    def _read_line(self, deadline: float, limit: int) -> Dialogue[bytes]:
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > limit:
                raise BrokenReplyError(f"a reply of more than {REPLY_LIMIT} bytes")
            yield from self._receive(deadline)
        line = bytes(self._buffer[:end]).rstrip(b"\r")
        del self._buffer[: end + 1]
        return line

    def _receive(self, deadline: float) -> Dialogue[None]:
        while True:
            try:
                received = self._socket.recv(8192)
                break
            except (BlockingIOError, ssl.SSLWantReadError):
                wanted = select.POLLIN
            except ssl.SSLWantWriteError:
                wanted = select.POLLOUT
            except OSError as error:
                raise DroppedError(_told(error)) from error
            yield from self._wait(wanted, deadline)
        if not received:
            raise DroppedError("the server closed the connection")
        self._buffer += received

    def unasked(self) -> Dialogue[Reply | None]:
        """Looks, without waiting, whether the server said or did something on its own.

        Returns:
          A reply nobody had asked for (mostly a 421 before it closes), None if all is quiet.

        Raises:
          WireError: the connection was closed, or what came was no reply.
        """
        if not self._buffer:
            try:
                received = self._socket.recv(8192)
            except (BlockingIOError, ssl.SSLWantReadError):
                return None
            except OSError as error:
                raise DroppedError(_told(error)) from error
            if not received:
                raise DroppedError("the server closed the connection")
            self._buffer += received
        return (yield from self.read_reply(time.monotonic() + 1.0))

    def close(self) -> None:
        """Closes the socket, without a word. Never raises."""
        with contextlib.suppress(OSError):
            self._socket.close()


def _connected(candidate: socket.socket, address: object, deadline: float) -> Dialogue[None]:
    try:
        candidate.connect(address)  # type: ignore[arg-type]
    except BlockingIOError:
        if not (yield Wait(candidate, select.POLLOUT, deadline)):
            raise OutOfTimeError("no answer in time") from None
        failed = candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failed:
            raise OSError(failed, os.strerror(failed)) from None


def _resolve(
    host: str, port: int, deadline: float
) -> Dialogue[list[tuple[socket.AddressFamily, tuple[object, ...]]]]:
    """Looks the host up, with a time limit, which the system's resolver doesn't offer."""
    found: list[tuple[socket.AddressFamily, tuple[object, ...]]] = []
    failures: list[Exception] = []

    def look_up() -> None:
        try:
            answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found.extend((family, address) for family, _, _, _, address in answers)
        except (OSError, ValueError) as error:  # ValueError: a name that can't be encoded
            failures.append(error)

    if _is_address(host):
        look_up()
    else:
        thread = threading.Thread(target=look_up, name="pipeline-resolve", daemon=True)
        thread.start()
        thread.join(RESOLVE_PAUSE)
        while thread.is_alive():
            if time.monotonic() >= deadline:
                raise OutOfTimeError("the name lookup took too long")
            yield Wait(None, 0, min(time.monotonic() + RESOLVE_PAUSE, deadline))
    if failures:
        raise DroppedError(f"the name lookup failed: {_told(failures[0])}")
    return found


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise OutOfTimeError("no answer in time")
    return left


def _told(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower() if error.strerror[1:2].islower() else error.strerror
    return str(error) or type(error).__name__


def on_the_wire(content: bytes) -> bytes:
    """The content as DATA carries it, without the final dot: every line ends with CRLF, a leading
    dot is doubled (RFC 5321 section 4.5.2).

    Bare CR and LF become CRLF: servers disagree about them, and a dot between two of them has
    ended messages early (SMTP smuggling, CVE-2023-51764).
    """
    line_count = content.count(b"\r\n")
    if content.count(b"\n") != line_count or content.count(b"\r") != line_count:
        content = _LINE_ENDS.sub(b"\r\n", content)
    content = _LEADING_DOTS.sub(b"..", content)
    return content if content.endswith(b"\r\n") or not content else content + b"\r\n"
