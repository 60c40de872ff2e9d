"""docs/model.md, made by searching."""

from __future__ import annotations

from collections.abc import Iterator

from tests.faults.model.protocol import ATTEMPTS, CRASHES, GUARDS, SENDERS
from tests.faults.model.search import Found, search

POLICIES = ("resend", "hold")

HEAD = f"""# The model

A small model of the [delivery protocol](proof.md) (`tests/faults/model/protocol.py`), in which
every order of steps is tried: {SENDERS} senders, recovery, the policy, a second row that comes at
any moment, {ATTEMPTS} attempts, {CRASHES} crashes, leases that end at any moment. A sender that
stops between two of its steps for as long as the others like is a frozen one; a server may take a
mail or not, and its reply may be lost either way.

Searched to its end, no state breaks a promise, and from every state an end can be reached:
"""

BETWEEN = """
This page is made by `python -m tests.faults.model`.

## Without a guard

With any one of these taken out, the search finds a way to break a promise: the shortest is shown.
"""


def counterexample(guard: str) -> tuple[str, Found]:
    """The policy under which taking out a guard breaks a promise, and how.

    Raises:
      LookupError: It breaks none: the guard is not needed, or the model misses why it is.
    """
    # Graver things first: what became of mails, before what became of their history.
    for grave in (True, False):
        for policy in POLICIES:
            found = search(policy, frozenset([guard]), grave=grave)
            if found.promise is not None:
                return policy, found
    raise LookupError(f"nothing breaks without {guard!r}")


def page() -> str:
    """The whole page."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield HEAD
    yield "| policy | states | steps |"
    yield "|---|---|---|"
    for policy in POLICIES:
        found = search(policy)
        assert (found.promise, found.stuck) == (None, 0)
        yield f"| `{policy}` | {found.states:,} | {found.steps:,} |"
    yield BETWEEN
    for guard, about in GUARDS.items():
        policy, found = counterexample(guard)
        yield f"### {guard}\n"
        yield f"Taken out: {about}. Under `{policy}`: **{found.promise}**.\n"
        yield from (f"{number}. {name}" for number, name in enumerate(found.trace, 1))
        yield ""
