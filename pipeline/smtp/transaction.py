"""One mail transaction (RFC 5321 section 3.3) over a ready connection, stage by stage."""

from __future__ import annotations

import time
from collections.abc import Mapping

from pipeline.replies import Outcome, Reply, Scope, Stage, Verdict
from pipeline.smtp.dialogue import Dialogue
from pipeline.smtp.relay import Timeouts
from pipeline.smtp.wire import Wire, WireError, WriteError, on_the_wire

__all__ = ["StoppedError", "Transaction", "check_envelope"]

#: RFC 5321 section 4.5.3.1.3: a path has at most 256 octets, with its brackets.
LONGEST_PATH = 254

#: "Bad sequence of commands", RFC 5321 section 4.2.2.
OUT_OF_SEQUENCE = 503


class StoppedError(Exception):
    """The transaction is over, mostly because it can't go on.

    `reply` is the server's answer at this `stage`, None if there was none. `verdict` is given where
    it isn't the reply that decides. `in_step` says that the connection can be used for another one.
    """

    def __init__(
        self,
        stage: Stage,
        reply: Reply | None = None,
        error: str | None = None,
        *,
        verdict: Verdict | None = None,
        in_step: bool = False,
    ) -> None:
        super().__init__(error)
        self.stage = stage
        self.reply = reply
        self.error = error
        self.verdict = verdict
        self.in_step = in_step


class Transaction:
    """The stages in their order: `envelope` (MAIL, RCPT, DATA), `content`, `dot`.

    Each of them raises `StoppedError` unless the server lets it go on.
    """

    def __init__(self, wire: Wire, features: Mapping[str, str], timeouts: Timeouts) -> None:
        self.wire = wire
        self.features = features
        self.timeouts = timeouts

    def envelope(self, mail_from: str, rcpt_to: str, content: bytes) -> Dialogue[None]:
        """Names sender and recipient and asks for the content's turn; the content decides what has
        to be asked for with it.

        A server that can be told all of it at once is (RFC 2920). It is given no content before
        it has taken each of the three.
        """
        commands = [
            (Stage.MAIL, self._mail_line(mail_from, rcpt_to, content), 2),
            (Stage.RCPT, f"RCPT TO:<{rcpt_to}>", 2),
            (Stage.DATA, "DATA", 3),
        ]
        if "PIPELINING" not in self.features:
            for stage, line, wanted in commands:
                yield from self._ask(stage, [line])
                yield from self._expect(stage, wanted)
            return
        yield from self._ask(Stage.MAIL, [line for _, line, _ in commands])
        for owed, (stage, _, wanted) in zip((2, 1, 0), commands, strict=True):
            yield from self._expect(stage, wanted, owed=owed)

    def _mail_line(self, mail_from: str, rcpt_to: str, content: bytes) -> str:
        line = f"MAIL FROM:<{mail_from}>"
        if not content.isascii() and "8BITMIME" in self.features:
            line += " BODY=8BITMIME"
        if not (mail_from + rcpt_to).isascii():
            if "SMTPUTF8" not in self.features:
                # RFC 6531 section 3.2; what a server makes of the bare bytes is anybody's guess.
                raise StoppedError(
                    Stage.RCPT,
                    error="the relay takes ASCII addresses only (it offers no SMTPUTF8)",
                    verdict=Verdict(Outcome.FAILED, Scope.ADDRESS),
                    in_step=True,
                )
            line += " SMTPUTF8"
        return line

    def _ask(self, stage: Stage, lines: list[str]) -> Dialogue[None]:
        try:
            yield from self.wire.ask(lines, _deadline(self.timeouts.command))
        except WireError as error:
            raise _lost(stage, error) from error

    def _expect(self, stage: Stage, wanted: int, *, owed: int = 0) -> Dialogue[None]:
        """Reads a reply; if it isn't the one wanted, also those `owed` to what was asked since."""
        try:
            reply = yield from self.wire.read_reply(_deadline(self.timeouts.command))
        except WireError as error:
            raise _lost(stage, error) from error
        if reply.code // 100 == wanted:
            return
        if reply.code == OUT_OF_SEQUENCE and owed < 2:
            # It had taken what goes before: we and it don't mean the same replies.
            raise StoppedError(stage, error=f"the server answered out of step: {reply}")
        in_step = reply.code // 100 in (4, 5) and reply.code != 421
        for _ in range(owed if in_step else 0):
            in_step = in_step and (yield from self._is_refused_too())
        raise StoppedError(stage, reply, in_step=in_step)

    def _is_refused_too(self) -> Dialogue[bool]:
        """Whether the next reply is a refusal as well.

        A server that waits for content although it has refused sender or recipient is left: it
        must not be given the dot that it waits for.
        """
        try:
            reply = yield from self.wire.read_reply(_deadline(self.timeouts.command))
        except WireError:
            return False
        return reply.code // 100 != 3 and reply.code != 421

    def content(self, content: bytes) -> Dialogue[None]:
        """Sends the message without its final dot."""
        try:
            yield from self.wire.write(on_the_wire(content), _deadline(self.timeouts.data))
        except WireError as error:
            # A server that refuses in the middle of it may have said why before it closed.
            yield from self.stop_if_unasked()
            raise _lost(Stage.DATA, error) from error
        yield from self.stop_if_unasked()

    def stop_if_unasked(self) -> Dialogue[None]:
        """Stops if the server has answered or closed before it was given the final dot.

        Without the dot it can't have accepted the message, so this is definite; and an answer left
        unread would be taken for the one to the dot.
        """
        try:
            reply = yield from self.wire.unasked()
        except WireError as error:
            raise _lost(Stage.DATA, error) from error
        if reply is not None:
            raise StoppedError(Stage.DATA, reply, "answered before the end of the message")

    def dot(self) -> Dialogue[Reply]:
        """Ends the message. From here on only a definite reply is an outcome."""
        deadline = _deadline(self.timeouts.reply)
        try:
            yield from self.wire.write(b".\r\n", deadline)
        except WriteError as error:
            # If nothing of it left this machine, the message was never completed.
            raise _lost(Stage.DATA if error.untouched else Stage.DOT, error) from error
        try:
            return (yield from self.wire.read_reply(deadline))
        except WireError as error:
            stopped = _lost(Stage.REPLY, error)
            # A code that came before the connection broke is as definite as any.
            stopped.reply = error.reply
            raise stopped from error


def check_envelope(mail_from: str, rcpt_to: str) -> None:
    """Refuses addresses that would end a command early or be another one.

    Raises:
      StoppedError: about the relay if it is the sender, which every message has, else the address.
    """
    wrong = _wrong_with(mail_from)
    if wrong:
        raise StoppedError(
            Stage.PREPARE,
            error=f"the sender's address {wrong}",
            verdict=Verdict(Outcome.DEFERRED, Scope.RELAY),
            in_step=True,
        )
    wrong = _wrong_with(rcpt_to) if rcpt_to else "is empty"
    if wrong:
        raise StoppedError(
            Stage.PREPARE,
            error=f"the recipient's address {wrong}",
            verdict=Verdict(Outcome.FAILED, Scope.ADDRESS),
            in_step=True,
        )


def _wrong_with(address: str) -> str | None:
    if any(each in "<> " or not each.isprintable() for each in address):
        return f"holds a character that can't be: {address[:100]!r}"
    if len(address.encode()) > LONGEST_PATH:
        return f"is longer than {LONGEST_PATH} octets: {address[:100]!r}"
    return None


def _lost(stage: Stage, error: WireError) -> StoppedError:
    told = "after the final dot" if stage is Stage.REPLY else f"at {stage.upper()}"
    told += f": {error}"
    if error.reply is not None:
        told += f" (in the middle of {str(error.reply)!r})"
    return StoppedError(stage, error=told)


def _deadline(seconds: float) -> float:
    return time.monotonic() + seconds
