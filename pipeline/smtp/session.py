"""Hands messages to the relay over one kept SMTP session.

`smtplib.SMTP.sendmail` raises the same exception before and after the server took the message, so
the stages are driven one by one here: whatever happens, the `Result` says how far it came, and only
what was lost after the final dot is uncertain.
"""

from __future__ import annotations

import contextlib
import re
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from pipeline.replies import Outcome, Reply, Scope, Stage, classify, storable
from pipeline.smtp.dialogue import BeforeDot, Dialogue, run
from pipeline.smtp.handshake import HandshakeError, open_wire, tls_context
from pipeline.smtp.relay import Relay, Timeouts
from pipeline.smtp.transaction import StoppedError, Transaction, check_envelope
from pipeline.smtp.wire import Wire, WireError

__all__ = ["Outcome", "Relay", "Reply", "Result", "Scope", "Session", "Stage", "Timeouts"]

#: A kept session that was idle for so many seconds is asked with RSET before it is used again.
IDLE_CHECK = 10.0

#: The answer to QUIT is waited for so many seconds at most: nothing depends on it.
QUIT_TIMEOUT = 2.0


@dataclass(frozen=True, slots=True)
class Result:
    """How an attempt ended: the outcome, what it is about, the stage reached, and why.

    `reply` is the server's answer at that stage, if there was one; `error` tells what went wrong
    beside it. Both are fit for storage.
    """

    outcome: Outcome
    scope: Scope
    stage: Stage
    reply: Reply | None = None
    error: str | None = None

    @property
    def smtp_code(self) -> int | None:
        return self.reply.code if self.reply else None

    @property
    def enhanced_code(self) -> str | None:
        return self.reply.enhanced_code if self.reply else None

    @property
    def reason(self) -> str:
        """One line for people: what went wrong, and the reply behind it."""
        return ": ".join(str(part) for part in (self.error, self.reply) if part)

    def in_ascii(self) -> Result:
        """The same with a `?` for each letter beyond ASCII."""
        reply = self.reply and replace(self.reply, text=_in_ascii(self.reply.text))
        return replace(self, reply=reply, error=self.error and _in_ascii(self.error))


def _in_ascii(text: str) -> str:
    return text.encode("ascii", "replace").decode("ascii")


class Session:
    """Sends one message after the other to a relay. Belongs to one thread.

    Parameters:
      relay: the server.
      timeouts: limits of each stage, in seconds.
      local_hostname: our name in EHLO, a fully qualified one.
      messages_per_session: after so many messages a new connection is made.
      idle_check: seconds after which a kept connection is tried with RSET before its next use.

    Raises:
      ValueError: for a value that can't be.
    """

    def __init__(
        self,
        relay: Relay,
        *,
        timeouts: Timeouts,
        local_hostname: str,
        messages_per_session: int = 100,
        idle_check: float = IDLE_CHECK,
    ) -> None:
        if messages_per_session < 1:
            raise ValueError(f"messages_per_session must be positive, got {messages_per_session}")
        if not re.fullmatch(r"[A-Za-z0-9.:_\[\]-]+", local_hostname):
            raise ValueError(f"local_hostname is not a host name: {local_hostname!r}")
        self.relay = relay
        self.timeouts = timeouts
        self.local_hostname = local_hostname
        self.messages_per_session = messages_per_session
        self.idle_check = idle_check
        self._context: ssl.SSLContext | None = None
        self._wire: Wire | None = None
        self._features: dict[str, str] = {}
        self._message_count = 0
        self._used_at = 0.0
        self._needs_reset = False

    def send(
        self, mail_from: str, rcpt_to: str, content: bytes, before_dot: Callable[[], bool]
    ) -> Result:
        """Hands one message to the relay.

        Connects if needed. A kept connection that turns out to be stale before its MAIL was
        accepted is replaced within the same call; nothing else is tried twice.

        Parameters:
          mail_from: the envelope's sender (RFC 5321 section 4.1.1.2), may be empty.
          rcpt_to: its one recipient.
          content: the message with CRLF line ends; leading dots are doubled here.
          before_dot: called once, when all but the final dot has been sent. False drops the
            connection, so that the server can't have accepted the message.

        Returns:
          How it ended. Trouble with names, sockets, TLS or SMTP is a result, never an exception.

        Raises:
          Exception: whatever `before_dot` raises; the connection is dropped first.
        """
        return run(self.dialogue(mail_from, rcpt_to, content), before_dot)

    def dialogue(self, mail_from: str, rcpt_to: str, content: bytes) -> Dialogue[Result]:
        """`send` as a dialogue, for who carries on several: it yields `BeforeDot` once and is told
        whether to go on.

        Whatever is thrown into it, and its end before it has come to a result, drops the
        connection.
        """
        try:
            return (yield from self._send(mail_from, rcpt_to, content))
        except StoppedError as stopped:
            return self._ended(stopped)
        except BaseException:
            # From who carries it on, or thrown into this thread: it is in no known state.
            self._drop()
            raise

    def _send(self, mail_from: str, rcpt_to: str, content: bytes) -> Dialogue[Result]:
        check_envelope(mail_from, rcpt_to)
        transaction = yield from self._begin(mail_from, rcpt_to, content)
        yield from transaction.content(content)
        if not (yield BeforeDot()):
            self._drop()
            error = "abandoned before the final dot"
            return Result(Outcome.ABANDONED, Scope.MESSAGE, Stage.DATA, error=error)
        try:
            yield from transaction.stop_if_unasked()
            reply = yield from transaction.dot()
            self._needs_reset = False
            in_step = reply.code // 100 in (2, 4, 5) and reply.code != 421
            return self._ended(StoppedError(Stage.REPLY, reply, in_step=in_step))
        except StoppedError:
            raise
        except Exception as error:
            # A fault of ours: whatever it is, the message may have been taken.
            told = f"after the final dot: {type(error).__name__}: {error}"
            raise StoppedError(Stage.REPLY, None, told) from error

    def _begin(self, mail_from: str, rcpt_to: str, content: bytes) -> Dialogue[Transaction]:
        """Gets as far as an accepted DATA, over the kept connection or a new one."""
        wire = yield from self._kept()
        if wire is not None:
            try:
                return (yield from self._envelope(wire, mail_from, rcpt_to, content))
            except StoppedError as stopped:
                closing = stopped.reply is None or stopped.reply.code == 421
                if stopped.stage is not Stage.MAIL or not closing:
                    raise
                # Closed, or about to be, for reasons older than this message.
        self._drop()
        wire = yield from self._connect()
        return (yield from self._envelope(wire, mail_from, rcpt_to, content))

    def _envelope(
        self, wire: Wire, mail_from: str, rcpt_to: str, content: bytes
    ) -> Dialogue[Transaction]:
        transaction = Transaction(wire, self._features, self.timeouts)
        self._message_count += 1
        self._needs_reset = True
        yield from transaction.envelope(mail_from, rcpt_to, content)
        return transaction

    def _kept(self) -> Dialogue[Wire | None]:
        """The kept connection, if it has messages left and is alive; else None."""
        wire = self._wire
        if wire is None:
            return None
        if self._message_count >= self.messages_per_session:
            yield from self.goodbye()
            return None
        try:
            idle = time.monotonic() - self._used_at
            if self._needs_reset or idle >= self.idle_check:
                deadline = time.monotonic() + self.timeouts.command
                reply = yield from wire.command("RSET", deadline)
                if reply.code // 100 != 2:
                    return None
                self._needs_reset = False
        except WireError:
            return None
        return wire

    def _connect(self) -> Dialogue[Wire]:
        deadline = time.monotonic() + self.timeouts.connect
        try:
            if self._context is None and self.relay.security != "plain":
                self._context = tls_context(self.relay)
            self._wire, self._features = yield from open_wire(
                self.relay, self.local_hostname, self._context, deadline
            )
        except HandshakeError as error:
            raise StoppedError(Stage.CONNECT, error.reply, str(error)) from error
        self._message_count = 0
        return self._wire

    def _ended(self, stopped: StoppedError) -> Result:
        if not stopped.in_step:
            self._drop()
        self._used_at = time.monotonic()
        verdict = stopped.verdict or classify(stopped.stage, stopped.reply)
        error = stopped.error
        if verdict.outcome is Outcome.UNCERTAIN and error is None:
            error = "the reply to the final dot is neither yes nor no"
        told = storable(error) if error else None
        return Result(verdict.outcome, verdict.scope, stopped.stage, stopped.reply, told)

    def close(self) -> None:
        """Says QUIT and closes. Never raises."""
        run(self.goodbye())

    def goodbye(self) -> Dialogue[None]:
        """`close` as a dialogue. If it is closed before its end, so is the connection."""
        try:
            if self._wire is not None:
                deadline = time.monotonic() + min(QUIT_TIMEOUT, self.timeouts.command)
                with contextlib.suppress(WireError):
                    yield from self._wire.command("QUIT", deadline)
        finally:
            self._drop()

    def _drop(self) -> None:
        """Closes without a word."""
        wire, self._wire = self._wire, None
        self._needs_reset = False
        if wire is not None:
            wire.close()
