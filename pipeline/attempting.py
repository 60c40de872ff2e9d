"""One attempt at one delivery, up to the server's reply: its steps, in their order.

    read, render | MAIL RCPT DATA content | marker | dot | reply

No transaction is open while the relay is talked to. Until the marker has committed the mail was not
sent, whatever happens; the session sends the final dot only when it is told that it may.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from . import delivery
from .database import Connection, boot_clock, holds_any_text
from .delivery import Claimed
from .prepared import Prepared
from .preparing import prepare
from .reading import Closing, Stack, Subject
from .rendering import InvalidAddress
from .replies import Outcome, Scope, Stage, storable
from .settings import Settings
from .smtp import Dialogue, Result, Session

logger = logging.getLogger(__name__)

#: The dot goes out within this share of the lease that the marker began, or not at all.
SAFE_SHARE = 0.8


class Source(Protocol):
    """Gives what a mail is made of: `reading.Ahead`, or `reader.WasRead`.

    Attributes:
      connection: Of the sender.
    """

    @property
    def connection(self) -> Connection: ...

    def stack(self, wanted: Subject) -> Stack | Closing: ...


class GivenUpError(Exception):
    """Thrown into an attempt that has to end before its dot, since its marker can't be set."""


def attempt(
    settings: Settings, session: Session, source: Source, claimed: Claimed
) -> Dialogue[Result | Closing]:
    """Try to send a delivery whose attempt has begun.

    Before the dot it asks `smtp.BeforeDot`: see `mark`.

    Parameters:
      source: Of what the mail is made of.

    Returns:
      How it ended, or why no mail is needed. An error of ours in making the mail is a deferral of
      this delivery alone; a broken database connection is an abandoned attempt, known not to be
      sent. Its texts are such that the database can hold them: an outcome that could not be written
      would become uncertain.
    """
    result = yield from _attempt(settings, session, source, claimed)
    if isinstance(result, Closing) or holds_any_text(source.connection):
        return result
    return result.in_ascii()


def _attempt(
    settings: Settings, session: Session, source: Source, claimed: Claimed
) -> Dialogue[Result | Closing]:
    try:
        subject = claimed.subject
        mail = prepare(settings, subject, source.stack(subject), message_id=claimed.message_id)
        if isinstance(mail, Closing):
            return mail
        return (yield from session.dialogue(mail.envelope_from, mail.envelope_to, mail.content))
    except InvalidAddress as error:
        return _prepared(Outcome.FAILED, str(error))
    except Exception as error:
        if isinstance(error, GivenUpError):
            return abandoned(str(error))
        if source.connection.closed:
            return abandoned(f"the database went away: {error}")
        logger.warning("Delivery %s could not be prepared.", claimed.id, exc_info=True)
        return _prepared(Outcome.DEFERRED, f"{type(error).__name__}: {error}")


@dataclass(frozen=True, slots=True)
class Markers:
    """Which dots may be sent, and until when, as of `boot_clock`."""

    ids: frozenset[str]
    until: float

    def allow(self, claimed: Claimed) -> bool:
        """Whether its dot may be sent now.

        The commit may have been slow, or this process frozen since: a dot must not go out when
        somebody may have declared its attempt lost.
        """
        return claimed.id in self.ids and boot_clock() < self.until


def mark(prepared: Prepared, settings: Settings, claims: Sequence[Claimed]) -> Markers:
    """Set the markers that go before the final dots, in one transaction."""
    before = boot_clock()
    # It commits by itself: when it has returned, the markers are there.
    rows = prepared.run(delivery.marking(claims, lease=settings.lease))
    until = before + settings.lease.total_seconds() * SAFE_SHARE
    return Markers(frozenset(row[0] for row in rows), until)


def abandoned(error: str) -> Result:
    """An attempt that ended before its dot."""
    return _prepared(Outcome.ABANDONED, error)


def _prepared(outcome: Outcome, error: str) -> Result:
    return Result(outcome, Scope.MESSAGE, Stage.PREPARE, error=storable(error))
