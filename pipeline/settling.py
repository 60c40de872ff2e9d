"""Writing the outcome of an attempt, come what may: what is known need not become uncertain."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta

import psycopg2

from . import delivery
from .database import LOCK_TIMEOUT, Cursor, Statement, boot_clock, connect, transaction
from .delivery import Claimed
from .replies import Outcome
from .settings import Settings
from .settlement import Settlement, settlement_for
from .smtp import Result

logger = logging.getLogger(__name__)

#: An outcome that can't be written, because the database is away, is tried again for this long.
PATIENCE = timedelta(minutes=5)

#: First and longest wait between two tries, in seconds.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0


def write_outcome(
    cursor: Cursor, settings: Settings, claimed: Claimed, result: Result, *, relay_pause: timedelta
) -> None:
    """Settle an attempt in the cursor's transaction, and log it."""
    settlement = settlement_for(
        result,
        attempt_count=claimed.attempt_count + 1,
        settings=settings,
        relay_pause=relay_pause,
    )
    delivery.settle(cursor, claimed, settlement)
    _log(claimed, settlement)


def settle_at_once(settings: Settings, results: Sequence[tuple[Claimed, Result]]) -> Statement:
    """The statement that settles attempts for which one is enough.

    Raises:
      ValueError: When a delivery has to wait again: that takes `write_outcome`.
    """
    settlements = []
    for claimed, result in results:
        settlement = settlement_for(
            result,
            attempt_count=claimed.attempt_count + 1,
            settings=settings,
            relay_pause=settings.relay_pause,
        )
        if settlement.waits:
            raise ValueError(f"delivery {claimed.id} waits again")
        settlements.append(settlement)
    for (claimed, _), settlement in zip(results, settlements, strict=True):
        _log(claimed, settlement)
    return delivery.settling([claimed for claimed, _ in results], settlements)


def write_outcome_patiently(url: str, settings: Settings, claimed: Claimed, result: Result) -> bool:
    """Settle an attempt although the connection broke: over new ones, until the database is back.

    Returns:
      Whether it could be written. If not, recovery declares the attempt lost.
    """
    settlement = settlement_for(
        result,
        attempt_count=claimed.attempt_count + 1,
        settings=settings,
        relay_pause=settings.relay_pause,
    )
    deadline = boot_clock() + PATIENCE.total_seconds()
    pause = FIRST_PAUSE
    while True:
        try:
            with (
                closing(connect(url, application_name="pipeline sender")) as connection,
                # What it has locked it must not keep for long: its lease could not be renewed.
                transaction(connection, lock_timeout=LOCK_TIMEOUT) as cursor,
            ):
                delivery.settle(cursor, claimed, settlement)
        except psycopg2.Error as error:
            if boot_clock() >= deadline:
                logger.exception(
                    "Delivery %s: its attempt ended %s (%s), which could not be written; it is "
                    "recovered as lost.",
                    claimed.id,
                    result.outcome.value,
                    result.reason,
                )
                return False
            logger.info("Delivery %s: its outcome waits for the database: %s", claimed.id, error)
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
        else:
            _log(claimed, settlement)
            return True


def _log(claimed: Claimed, settlement: Settlement) -> None:
    logger.log(
        logging.DEBUG if settlement.outcome is Outcome.SENT else logging.INFO,
        "Delivery %s: %s at %s, now %s: %s",
        claimed.id,
        settlement.outcome.value,
        settlement.stage.value,
        settlement.state,
        settlement.reason,
    )
