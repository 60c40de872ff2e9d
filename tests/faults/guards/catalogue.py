"""All guards, in the sections of their page."""

from __future__ import annotations

from tests.faults.guards.dispatching import CLAIMS, DISPATCH
from tests.faults.guards.going_on import CALLS, JOINING, RECOVERING, TURNS
from tests.faults.guards.handing_over import MARKER, OUTCOMES

SECTIONS = {
    "Dispatch": DISPATCH,
    "Claims and leases": CLAIMS,
    "Marker and dot": MARKER,
    "Outcomes": OUTCOMES,
    "Senders that share a turn": TURNS,
    "One stack, one email": JOINING,
    "Recovery": RECOVERING,
    "Doorbells, places, transactions": CALLS,
}

GUARDS = tuple(guard for guards in SECTIONS.values() for guard in guards)
