"""What will go wrong and when: drawn from the seed before anything starts. No I/O."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What can be done to an installation."""

    KILL = "kill"
    FREEZE = "freeze"
    TERMINATE = "terminate backends"
    RESTART = "restart the database"
    CUT_DATABASE = "cut the database"
    STALL_DATABASE = "stall the database"
    HALF_DATABASE = "half-open to the database"
    DELAY_DATABASE = "delay the database"
    CUT_RELAY = "cut the relay"
    STALL_RELAY = "stall the relay"
    HALF_RELAY = "half-open to the relay"
    DELAY_RELAY = "delay the relay"
    MOOD = "moody relay"
    DUPLICATE = "duplicate messages"
    DELETE = "delete messages"
    DELAY = "delay messages"


class Mood(StrEnum):
    """How the mail server behaves for a while."""

    WELL = "well"
    BUSY = "421 to everybody"
    GREYLISTING = "greylisting"
    REFUSING = "refusing some"
    FULL = "no room"
    SILENT = "falls silent"
    DROPPING = "drops connections"
    LOSING = "loses replies"
    SLOW = "slow"
    GARBLED = "garbled replies"


#: How often each happens a minute, and how long it lasts, in seconds (shortest, longest).
RATES: dict[Kind, tuple[float, tuple[float, float]]] = {
    Kind.KILL: (26, (0, 0)),
    Kind.FREEZE: (6, (0.2, 12)),
    Kind.TERMINATE: (6, (0, 0)),
    Kind.RESTART: (1.5, (0, 0)),
    Kind.CUT_DATABASE: (3, (0, 3)),
    Kind.STALL_DATABASE: (2, (0.5, 8)),
    Kind.HALF_DATABASE: (1.5, (0.5, 8)),
    Kind.DELAY_DATABASE: (1, (1, 5)),
    Kind.CUT_RELAY: (4, (0, 3)),
    Kind.STALL_RELAY: (2, (0.5, 8)),
    Kind.HALF_RELAY: (1.5, (0.5, 8)),
    Kind.DELAY_RELAY: (1, (1, 5)),
    Kind.MOOD: (8, (1, 6)),
    Kind.DUPLICATE: (6, (0, 0)),
    Kind.DELETE: (6, (0, 0)),
    Kind.DELAY: (4, (1, 15)),
}

#: What can't be done to a server that others use too.
OURS_ALONE = frozenset({Kind.RESTART})

#: Done to the network between workers and mail server.
TOWARDS_RELAY = frozenset({Kind.CUT_RELAY, Kind.STALL_RELAY, Kind.HALF_RELAY, Kind.DELAY_RELAY})


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that goes wrong.

    Attributes:
      at: Seconds after the start.
      seconds: How long it lasts; 0 for what is done at once.
      share: From 0 up to 1: picks the target among those that there are at that moment.
      mood: Of the mail server, if it is about that.
    """

    at: float
    kind: Kind
    seconds: float
    share: float
    mood: Mood = Mood.WELL


def make_plan(
    seed: int, seconds: float, *, rate: float = 1.0, without: frozenset[Kind] = frozenset()
) -> list[Event]:
    """Draw the events of a run, in the order of their times.

    Each kind is spread over the whole time: one event in each of its intervals, at a random moment
    of it. The same arguments give the same plan.

    Parameters:
      rate: Faults in proportion to the usual ones.
      without: Kinds that must not happen.
    """
    events: list[Event] = []
    for kind, (a_minute, (shortest, longest)) in RATES.items():
        if kind in without:
            continue
        draw = random.Random(f"{seed} {kind.value}")
        count = int(a_minute * rate * seconds / 60 + 0.5)
        moods = [mood for mood in Mood if mood is not Mood.WELL]
        events += [
            Event(
                at=(number + draw.random()) * seconds / count,
                kind=kind,
                seconds=draw.uniform(shortest, longest),
                share=draw.random(),
                mood=draw.choice(moods) if kind is Kind.MOOD else Mood.WELL,
            )
            for number in range(count)
        ]
    return sorted(events, key=lambda event: event.at)


def counted(events: Sequence[Event]) -> dict[str, int]:
    """How many of each kind, most first."""
    return dict(Counter(event.kind.value for event in events).most_common())
