"""The protocol as a transition system: two senders, recovery, a stack that gets one more row.

A step of a process is one of its transactions or one move towards the server; between two steps any
other process may make any number of its own, so a freeze is nothing special. A lease may end at any
moment while it is not renewed, and a sender may crash at any moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

#: What can be taken out, and what the code does about it.
GUARDS = {
    "lock": "a claim locks the row, and looks at its state again",
    "marker": "a marker is committed before the dot",
    "order": "the marker comes before the dot, not after it",
    "mark token": "the marker needs the attempt's token",
    "settle token": "an outcome settles the delivery under its attempt's token only",
    "lease": "recovery takes nothing whose lease is not over",
    "clock": "after the marker a sender looks whether its lease may be over",
    "late": "a late acceptance leaves its attempt uncertain when another has the delivery",
    "policy": "what is uncertain is not sent again under `hold`",
    "absorb token": "only whoever has a delivery in hand moves rows into it",
    "absorb certain": "nothing is moved into what may have been received",
    "join certain": "new rows don't join what may have been received",
}

#: Attempts after which a delivery fails, and crashes in one history.
ATTEMPTS, CRASHES, SENDERS = 3, 2, 2


class Attempt(NamedTuple):
    """`copies`: accepted by the server under it. `window`: it really came to where nobody knows."""

    outcome: str = ""
    given_up: bool = False
    copies: int = 0
    content: int = 0
    window: bool = False


class Sender(NamedTuple):
    """`content`: the rows it has read, one bit each. `stale`: its lease ended before it looked."""

    at: str = "idle"
    token: int = 0
    content: int = 0
    stale: bool = False


class State(NamedTuple):
    """One delivery; `rows` it has, one bit each; `other` is what became of the second row."""

    delivery: str = "queued"
    token: int = 0
    lease: bool = False
    uncertain: int = 0
    rows: int = 1
    other: str = "none"
    attempts: tuple[Attempt, ...] = ()
    senders: tuple[Sender, ...] = (Sender(),) * SENDERS
    crashes: int = CRASHES

    def with_attempt(self, token: int, **changes: object) -> State:
        attempt = self.attempts[token - 1]._replace(**changes)  # type: ignore[arg-type]
        before, after = self.attempts[: token - 1], self.attempts[token:]
        return self._replace(attempts=(*before, attempt, *after))

    def with_sender(self, number: int, **changes: object) -> State:
        sender = self.senders[number]._replace(**changes)  # type: ignore[arg-type]
        before, after = self.senders[:number], self.senders[number + 1 :]
        return self._replace(senders=(*before, sender, *after))


Step = tuple[str, State]


class Protocol:
    """Parameters:
    policy: `resend` or `hold`.
    without: The guards that are taken out.
    """

    def __init__(self, policy: str, without: frozenset[str] = frozenset()) -> None:
        self.policy = policy
        self.without = without

    def has(self, guard: str) -> bool:
        return guard not in self.without

    def steps(self, state: State) -> Iterator[Step]:
        """Everything that may happen next, with its name."""
        for number in range(SENDERS):
            yield from self._of_sender(state, number)
        yield from self._of_time(state)
        yield from self._of_recovery(state)
        yield from self._of_rows(state)

    def _of_sender(self, state: State, number: int) -> Iterator[Step]:
        sender = state.senders[number]
        name = f"sender {number + 1}"
        if sender.at != "idle" and state.crashes:
            idle = state._replace(crashes=state.crashes - 1)
            yield f"{name} crashes", idle.with_sender(number, **Sender()._asdict())
        yield from self._towards_the_dot(state, number, name)
        yield from self._after_it(state, number, name)

    def _towards_the_dot(self, state: State, number: int, name: str) -> Iterator[Step]:
        match state.senders[number].at:
            case "idle" if state.delivery == "queued" and state.token < ATTEMPTS:
                if self.has("lock"):
                    yield f"{name} claims", _claimed(state, number)
                else:
                    yield f"{name} sees it queued", state.with_sender(number, at="seeing")
            case "seeing" if state.token < ATTEMPTS:
                yield f"{name} claims what it saw", _claimed(state, number)
            case "seeing":
                yield f"{name} leaves it", state.with_sender(number, at="idle")
            case "claimed":
                reading = state.with_sender(number, at="read", content=state.rows)
                yield f"{name} reads the rows", reading
            case "read":
                yield f"{name} is refused", state.with_sender(number, at="abandoning")
                if not self.has("marker"):
                    yield f"{name} goes on to the dot", state.with_sender(number, at="checked")
                elif not self.has("order"):
                    yield from _dot(state, number, name, then="dotted")
                else:
                    yield self._mark(state, number, name, then="marked")
            case "marked":
                yield self._check(state, number, name)

    def _after_it(self, state: State, number: int, name: str) -> Iterator[Step]:
        match state.senders[number].at:
            case "checked":
                yield from _dot(state, number, name, then="accepted")
            case "dotted":
                yield self._mark(state, number, name, then="accepted")
            case "accepted":
                yield f"{name} writes `sent`", self._settled(state, number, "sent")
            case "lost":
                yield f"{name} writes `uncertain`", self._settled(state, number, "uncertain")
            case "abandoning":
                yield f"{name} puts it back", self._settled(state, number, "deferred")

    def _mark(self, state: State, number: int, name: str, *, then: str) -> Step:
        may = state.delivery == "sending" and (
            state.token == state.senders[number].token or not self.has("mark token")
        )
        if not may:
            failed = "abandoning" if then == "marked" else then
            return f"{name} can't mark it", state.with_sender(number, at=failed)
        marked = state._replace(delivery="transmitting", lease=True)
        return f"{name} marks it", marked.with_sender(number, at=then, stale=False)

    def _check(self, state: State, number: int, name: str) -> Step:
        if state.senders[number].stale and self.has("clock"):
            told = f"{name} finds that its lease may be over"
            return told, state.with_sender(number, at="abandoning")
        return f"{name} is sure of its lease", state.with_sender(number, at="checked")

    def _settled(self, state: State, number: int, outcome: str) -> State:
        token = state.senders[number].token
        attempt = state.attempts[token - 1]
        ours = state.delivery in ("sending", "transmitting", "uncertain", "queued", "held") and (
            (state.token == token and (not attempt.outcome or attempt.given_up))
            or not self.has("settle token")
        )
        if outcome == "deferred" and state.delivery in ("sending", "transmitting"):
            state = self._absorbed(state, in_hand=state.token == token)
        if ours:
            becomes = {"deferred": "queued"}.get(outcome, outcome)
            uncertain = state.uncertain + (outcome == "uncertain")
            state = state._replace(delivery=becomes, lease=False, uncertain=min(uncertain, 2))
        elif outcome == "sent" and attempt.outcome == "uncertain" and self.has("late"):
            outcome = "uncertain"
        state = state.with_attempt(token, outcome=outcome, given_up=False)
        return state.with_sender(number, **Sender()._asdict())

    def _absorbed(self, state: State, *, in_hand: bool) -> State:
        if (
            state.other == "waiting"
            and (in_hand or not self.has("absorb token"))
            and (state.uncertain == 0 or not self.has("absorb certain"))
        ):
            return state._replace(other="joined", rows=state.rows | 2)
        return state

    def _of_time(self, state: State) -> Iterator[Step]:
        if not state.lease:
            return
        over = state._replace(lease=False)
        holders = [n for n, each in enumerate(state.senders) if each.token == state.token]
        if state.delivery == "transmitting":
            waits = [n for n in holders if state.senders[n].at == "marked"]
            for number in waits:
                over = over.with_sender(number, stale=True)
            if not waits:
                over = over.with_attempt(state.token, window=True)
        yield "the lease ends", over

    def _of_recovery(self, state: State) -> Iterator[Step]:
        is_over = not state.lease or not self.has("lease")
        token = state.token
        if state.delivery == "sending" and is_over:
            taken = self._absorbed(state, in_hand=True)._replace(delivery="queued", lease=False)
            open_ = not taken.attempts[token - 1].outcome
            changes = {"outcome": "abandoned", "given_up": True} if open_ else {}
            yield "recovery gives it up", taken.with_attempt(token, **changes)
        if state.delivery == "transmitting" and is_over:
            taken = state._replace(
                delivery="uncertain", lease=False, uncertain=min(state.uncertain + 1, 2)
            )
            open_ = not taken.attempts[token - 1].outcome
            changes = {"outcome": "uncertain", "given_up": True} if open_ else {}
            yield "recovery declares it uncertain", taken.with_attempt(token, **changes)
        if state.delivery == "uncertain":
            held = self.policy == "hold" and self.has("policy")
            yield "the policy decides", state._replace(delivery="held" if held else "queued")
        if state.delivery == "queued" and state.token == ATTEMPTS:
            yield "its attempts are used up", state._replace(delivery="failed")

    def _of_rows(self, state: State) -> Iterator[Step]:
        if state.other == "none":
            if state.delivery == "queued" and (
                state.uncertain == 0 or not self.has("join certain")
            ):
                yield "a new row joins it", state._replace(other="joined", rows=3)
            else:
                yield "a new row gets a delivery of its own", state._replace(other="waiting")
        if state.other == "waiting":
            yield "the other delivery goes its own way", state._replace(other="apart")


def _claimed(state: State, number: int) -> State:
    token = state.token + 1
    claimed = state._replace(
        delivery="sending", token=token, lease=True, attempts=(*state.attempts, Attempt())
    )
    return claimed.with_sender(number, at="claimed", token=token, content=0, stale=False)


def _dot(state: State, number: int, name: str, *, then: str) -> Iterator[Step]:
    sender = state.senders[number]
    taken = state.with_attempt(
        sender.token,
        copies=state.attempts[sender.token - 1].copies + 1,
        content=sender.content,
    )
    yield f"{name} sends the dot, and is told that it was taken", taken.with_sender(number, at=then)
    lost = taken.with_attempt(sender.token, window=True)
    yield (
        f"{name} sends the dot, it is taken, the reply is lost",
        lost.with_sender(number, at="lost"),
    )
    untaken = state.with_attempt(sender.token, window=True)
    yield (
        f"{name} sends the dot, it is not taken, the reply is lost",
        untaken.with_sender(number, at="lost"),
    )
