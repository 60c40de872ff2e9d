"""docs/guards.md, made from the catalogue."""

from __future__ import annotations

from collections.abc import Iterator

from tests.faults.guards.catalogue import GUARDS, SECTIONS
from tests.faults.guards.guard import Guard

HEAD = """# Guards, proven by breaking

Each of these stands between the promise and one way to break it. Each was taken out of a copy of
the code, and the test named beside it failed: so it is needed, and it is looked at. The last column
is what was replaced, and by what (nothing, where nothing is said).

This page is made by `python -m tests.faults.guards`, which breaks all of them anew and writes it
only if every one is missed. The promises are those of [the proof](proof.md).
"""


def page() -> str:
    """The whole page."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield HEAD
    yield f"{len(GUARDS)} guards, {len(GUARDS)} missed by a test.\n"
    for title, guards in SECTIONS.items():
        yield f"## {title}\n"
        yield "| guard | | missed by | taken out |"
        yield "|---|---|---|---|"
        yield from (_row(guard) for guard in guards)
        yield ""


def _row(guard: Guard) -> str:
    _, _, test = guard.test.partition("::")
    file = guard.test.partition("::")[0]
    old, new = (" ".join(text.split()).replace("|", "\\|") for text in (guard.old, guard.new))
    change = f"`{old}`" + (f" → `{new}`" if new else "")
    return f"| {guard.name} | {guard.promise} | `{test}` in `{file}` | `{guard.path}`: {change} |"
