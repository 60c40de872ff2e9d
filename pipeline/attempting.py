"""One attempt at one delivery, up to the server's reply: its steps, in their order.

    read, render | MAIL RCPT DATA content | marker | dot | reply

No transaction is open while the relay is talked to. Until the marker has committed the mail was not
sent, whatever happens; the session sends the final dot only after `before_dot` said yes.
"""

from __future__ import annotations

import logging

from . import delivery
from .database import boot_clock, holds_any_text
from .delivery import Claimed
from .prepared import Prepared
from .preparing import prepare
from .reading import Ahead, Closing
from .rendering import InvalidAddress
from .replies import Outcome, Scope, Stage, storable
from .settings import Settings
from .smtp import Result, Session

logger = logging.getLogger(__name__)

#: The dot goes out within this share of the lease that the marker began, or not at all.
SAFE_SHARE = 0.8


def attempt(
    prepared: Prepared, settings: Settings, session: Session, ahead: Ahead, claimed: Claimed
) -> Result | Closing:
    """Try to send a delivery whose attempt has begun.

    Parameters:
      ahead: Reads the chunk that the delivery is in.

    Returns:
      How it ended, or why no mail is needed. An error of ours in making the mail is a deferral of
      this delivery alone; a broken database connection is an abandoned attempt, known not to be
      sent, and the connection's `closed` tells it. Its texts are such that the database can hold
      them: an outcome that could not be written would become uncertain.
    """
    result = _attempt(prepared, settings, session, ahead, claimed)
    if isinstance(result, Closing) or holds_any_text(prepared.connection):
        return result
    return result.in_ascii()


def _attempt(
    prepared: Prepared, settings: Settings, session: Session, ahead: Ahead, claimed: Claimed
) -> Result | Closing:
    try:
        subject = claimed.subject
        mail = prepare(settings, subject, ahead.stack(subject), message_id=claimed.message_id)
        if isinstance(mail, Closing):
            return mail
        return session.send(
            mail.envelope_from,
            mail.envelope_to,
            mail.content,
            lambda: _may_send_dot(prepared, settings, claimed),
        )
    except InvalidAddress as error:
        return _prepared(Outcome.FAILED, str(error))
    except Exception as error:
        if prepared.connection.closed:
            return _prepared(Outcome.ABANDONED, f"the database went away: {error}")
        logger.warning("Delivery %s could not be prepared.", claimed.id, exc_info=True)
        return _prepared(Outcome.DEFERRED, f"{type(error).__name__}: {error}")


def _may_send_dot(prepared: Prepared, settings: Settings, claimed: Claimed) -> bool:
    before = boot_clock()
    # It commits by itself: when it has returned, the marker is there.
    marked = bool(prepared.run(delivery.marking(claimed, lease=settings.lease)))
    # The commit may have been slow, or this process frozen: the dot must not go out when somebody
    # may have declared this attempt lost.
    return marked and boot_clock() - before < settings.lease.total_seconds() * SAFE_SHARE


def _prepared(outcome: Outcome, error: str) -> Result:
    return Result(outcome, Scope.MESSAGE, Stage.PREPARE, error=storable(error))
