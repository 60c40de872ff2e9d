"""Stacking: waiting notifications become deliveries, and somebody is called to send them.

A pass walks the waiting stacks in key order, a chunk at a time. A chunk's claim, its deliveries and
the doorbells for the senders commit in one transaction or not at all. Rows never travel to Python,
and any number of passes may run at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg2

from .database import Connection, Cursor, query, transaction
from .doorbells import Doorbells
from .settings import Settings

logger = logging.getLogger(__name__)

#: How often a chunk is asked again when another pass got in between.
TRIES = 5

#: The delivery of a stack that is claimed in parts waits for so long for the next part.
HOLD = timedelta(seconds=30)

#: A stack: receiver, kind of the item, the item.
Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pass is.

    Attributes:
      after: The last stack that it is through with.
      begun: A stack of which it has claimed a part.
      is_over: There was no stack to look at any more.
    """

    after: Key | None = None
    begun: Key | None = None
    is_over: bool = False


_START = Place()
_NOWHERE: Key = ("", "", "")


@dataclass(slots=True)
class Pass:
    """What a stacking pass did.

    Attributes:
      claimed_count: Notifications claimed.
      created_count: Deliveries made.
      joined_count: Times that waiting deliveries were given more notifications.
      message_count: Dramatiq messages written.
    """

    claimed_count: int = 0
    created_count: int = 0
    joined_count: int = 0
    message_count: int = 0


def run_pass(
    connection: Connection,
    settings: Settings,
    doorbells: Doorbells,
    *,
    urgent_only: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
    on_chunk: Callable[[Pass], None] = lambda _: None,
) -> Pass:
    """Claim everything that is due, until nothing is.

    Parameters:
      connection: In autocommit mode, outside a transaction.
      settings: Limits of a chunk, domain and age limit of deliveries.
      doorbells: Calls the senders.
      urgent_only: Only stacks that have an urgent row, each with all its rows.
      should_stop: Asked between two chunks.
      on_chunk: Told after each commit what was done so far.

    Returns:
      What was done; what is committed stays so when a later chunk raises.
    """
    done = Pass()
    place = Place()
    while not should_stop():
        place = _retry_chunk(connection, settings, doorbells, urgent_only, place, done)
        if place.is_over:
            break
        on_chunk(done)
    return done


def _retry_chunk(
    connection: Connection,
    settings: Settings,
    doorbells: Doorbells,
    urgent_only: bool,
    place: Place,
    done: Pass,
) -> Place:
    for attempt in range(1, TRIES + 1):
        try:
            with transaction(connection) as cursor:
                chunk, following = claim_chunk(
                    cursor, settings, doorbells, urgent_only=urgent_only, place=place
                )
        except (
            psycopg2.errors.UniqueViolation,
            psycopg2.errors.DeadlockDetected,
            psycopg2.errors.SerializationFailure,
        ):
            # Another pass gave a stack its delivery between our snapshot and our lock on it.
            if attempt == TRIES:
                raise
            logger.debug("Chunk after %s is asked again (%d).", place.after, attempt)
        else:
            done.claimed_count += chunk.claimed_count
            done.created_count += chunk.created_count
            done.joined_count += chunk.joined_count
            done.message_count += chunk.message_count
            return following
    raise AssertionError("unreachable")


def claim_parameters(settings: Settings, *, urgent_only: bool, place: Place) -> dict[str, Any]:
    """The parameters of `stack_claim.sql` for one chunk."""
    receiver_id, entity_name, entity_identifier = place.after or _NOWHERE
    begun_receiver_id, begun_entity_name, begun_entity_identifier = place.begun or _NOWHERE
    return {
        "urgent_only": urgent_only,
        "from_start": place.after is None,
        "receiver_id": receiver_id,
        "entity_name": entity_name,
        "entity_identifier": entity_identifier,
        "is_begun": place.begun is not None,
        "begun_receiver_id": begun_receiver_id,
        "begun_entity_name": begun_entity_name,
        "begun_entity_identifier": begun_entity_identifier,
        "stack_limit": settings.stack_limit,
        "row_limit": settings.row_limit,
        "domain": settings.domain,
        "max_age": settings.max_age,
        "hold": HOLD,
    }


def claim_chunk(
    cursor: Cursor,
    settings: Settings,
    doorbells: Doorbells,
    *,
    urgent_only: bool,
    place: Place = _START,
) -> tuple[Pass, Place]:
    """Claim the next stacks, and ring for them.

    All in the cursor's transaction.

    Returns:
      What was done, and where the pass is now.
    """
    cursor.execute(query("walk_plan"))
    # If the database crashed, it could take the chunk back, as a whole: the rows would wait again.
    # Nothing can have been sent of it, since the marker before a dot waits for the disk, and with
    # it for all that was committed before.
    cursor.execute("SET LOCAL synchronous_commit = off")
    cursor.execute(
        query("stack_claim"), claim_parameters(settings, urgent_only=urgent_only, place=place)
    )
    row = cursor.fetchone()
    if row is None:
        return Pass(), Place(place.after, is_over=True)
    last: Key = (row[0], row[1], row[2])
    is_whole, claimed_count, created_count, joined_count = row[3:]
    message_count = 0
    if created_count or joined_count:
        wanted = -(-(created_count + joined_count) // settings.chunk)
        message_count = doorbells.ring_senders(cursor, wanted)
    done = Pass(claimed_count, created_count, joined_count, message_count)
    if claimed_count and not is_whole:
        # The same stack is the next one still.
        return done, Place(place.after, begun=last)
    return done, Place(last)
