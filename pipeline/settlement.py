"""From the result of an attempt to what becomes of its delivery. No I/O."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any

from .replies import Outcome, Scope, Stage
from .settings import Settings
from .smtp import Result

#: Waits grow by this factor.
GROWTH = 3

#: Waits differ from their nominal length by up to this share, so that they don't all end at once.
JITTER = 0.2


@dataclass(frozen=True, slots=True)
class Settlement:
    """What is written when an attempt is over.

    Attributes:
      state: The delivery's next state.
      reason: Why, for people.
      outcome: The attempt's.
      delay: How long until the next attempt may begin; None leaves the time as it is.
      refund: 1 when the attempt does not count.
    """

    state: str
    reason: str
    outcome: Outcome
    stage: Stage
    smtp_code: int | None = None
    enhanced_code: str | None = None
    reply: str | None = None
    error: str | None = None
    delay: timedelta | None = None
    refund: int = 0

    @property
    def waits(self) -> bool:
        """Whether the delivery waits again afterwards."""
        return self.state in ("queued", "deferred")


#: Parameters of `delivery_settle.sql`, and the attributes that they are the columns of.
_COLUMNS = {
    "states": "state",
    "reasons": "reason",
    "stages": "stage",
    "outcomes": "outcome",
    "smtp_codes": "smtp_code",
    "enhanced_codes": "enhanced_code",
    "replies": "reply",
    "errors": "error",
    "delays": "delay",
    "refunds": "refund",
}


def columns(settlements: Sequence[Settlement]) -> dict[str, list[Any]]:
    """As `delivery_settle.sql` takes them: a list for each parameter, of a value for each."""
    return {
        name: [_plain(getattr(each, attribute)) for each in settlements]
        for name, attribute in _COLUMNS.items()
    }


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def retry_delay(
    attempt_count: int, settings: Settings, *, chance: random.Random | None = None
) -> timedelta:
    """How long to wait after so many attempts: exponential, with jitter, capped.

    Parameters:
      attempt_count: Attempts used up, at least 1.
    """
    chance = chance or random.Random()
    growth = GROWTH ** min(max(attempt_count, 1) - 1, 40)
    nominal = min(settings.retry_base.total_seconds() * growth, settings.retry_cap.total_seconds())
    return timedelta(seconds=nominal * chance.uniform(1 - JITTER, 1 + JITTER))


def settlement_for(
    result: Result, *, attempt_count: int, settings: Settings, relay_pause: timedelta
) -> Settlement:
    """What becomes of a delivery after this result.

    Parameters:
      result: How the attempt ended.
      attempt_count: Attempts used up, this one included.
      relay_pause: How long the relay is left alone when it was to blame.
    """
    state, reason = result.outcome.value, result.reason or result.outcome.value
    delay: timedelta | None = None
    refund = 0
    outcome = result.outcome
    if outcome is Outcome.ABANDONED:
        state = "queued"
        if result.stage is Stage.PREPARE:
            # Its sender's trouble, not this delivery's: it costs no attempt.
            refund = 1
        else:
            reason = "its sender lost the lease before the final dot"
    elif outcome is Outcome.UNCERTAIN:
        reason = f"may have been received: {reason}"
    elif outcome is Outcome.DEFERRED and result.scope is Scope.RELAY:
        # The relay's trouble, not this delivery's: it costs no attempt.
        delay, refund = relay_pause, 1
    elif outcome is Outcome.DEFERRED:
        if attempt_count >= settings.max_attempts:
            state, reason = "failed", f"{attempt_count} attempts used up, the last one: {reason}"
        else:
            delay = retry_delay(attempt_count, settings)
    return Settlement(
        state=state,
        reason=reason,
        outcome=outcome,
        stage=result.stage,
        smtp_code=result.smtp_code,
        enhanced_code=result.enhanced_code,
        reply=result.reply.text if result.reply else None,
        error=result.error,
        delay=delay,
        refund=refund,
    )
