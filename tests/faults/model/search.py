"""Searches all states of the model, and tells how a broken promise is come to."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tests.faults.model.protocol import Protocol, State

FINAL = ("sent", "held", "failed")


def broken(state: State, policy: str, *, grave: bool = False) -> str | None:
    """Which promise this state breaks, if any. Told when all senders have said their last word.

    Parameters:
      grave: Only what is about the mails themselves.
    """
    if state.delivery not in FINAL or any(each.at != "idle" for each in state.senders):
        return None
    copies = sum(each.copies for each in state.attempts)
    uncertain = sum(each.outcome == "uncertain" for each in state.attempts)
    windows = sum(each.window for each in state.attempts)
    contents = {each.content for each in state.attempts if each.copies}
    if state.delivery == "sent" and not copies:
        return "lost: recorded as sent, and never taken by the server"
    if state.delivery == "failed" and copies > uncertain:
        return "recorded as failed, and taken by the server"
    if copies - 1 > uncertain:
        return "a copy that no uncertain attempt explains"
    if policy == "hold" and copies > 1:
        return "sent again, although the policy is to hold"
    if copies - 1 > windows:
        return "a copy that was avoidable: its sender could know that it was not sent, or was alive"
    if len(contents) > 1:
        return "two copies under one Message-ID tell of different rows"
    if state.delivery == "sent" and any(content != state.rows for content in contents):
        return "a row is marked as sent and was in no mail"
    if not grave and any(not each.outcome for each in state.attempts):
        return "an attempt without an outcome"
    return None


@dataclass
class Found:
    """What a search found. `trace`: the shortest way to a broken promise. `stuck`: how many states
    there are from which no end can be reached any more."""

    states: int = 0
    steps: int = 0
    promise: str | None = None
    trace: list[str] = field(default_factory=list)
    stuck: int = 0


def search(policy: str, without: frozenset[str] = frozenset(), *, grave: bool = False) -> Found:
    """Go through every state, breadth first, until one breaks a promise."""
    protocol = Protocol(policy, without)
    first = State()
    came_from: dict[State, tuple[State, str] | None] = {first: None}
    sources: dict[State, list[State]] = {}
    waiting = deque([first])
    found = Found()
    ends = []
    while waiting:
        state = waiting.popleft()
        found.states += 1
        promise = broken(state, policy, grave=grave)
        if promise is not None:
            found.promise, found.trace = promise, _trace(came_from, state)
            return found
        if state.delivery in FINAL:
            ends.append(state)
        for name, following in protocol.steps(state):
            found.steps += 1
            sources.setdefault(following, []).append(state)
            if following not in came_from:
                came_from[following] = state, name
                waiting.append(following)
    found.stuck = found.states - len(_that_lead_to(ends, sources))
    return found


def _trace(came_from: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    names = []
    while (step := came_from[state]) is not None:
        state, name = step
        names.append(name)
    return names[::-1]


def _that_lead_to(ends: list[State], sources: dict[State, list[State]]) -> set[State]:
    reached = set(ends)
    waiting = list(ends)
    while waiting:
        for source in sources.get(waiting.pop(), ()):
            if source not in reached:
                reached.add(source)
                waiting.append(source)
    return reached
