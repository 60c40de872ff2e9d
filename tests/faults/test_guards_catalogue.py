"""The catalogue of guards is up to date; `python -m tests.faults.guards` breaks all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.guards.catalogue import GUARDS
from tests.faults.guards.guard import ROOT, Guard, break_guard, copy_to
from tests.faults.guards.page import page

#: Broken in every test run: one of each kind.
SAMPLE = (
    "two claims share nothing: the rows are locked",
    "the marker comes before the dot",
    "an outcome settles its own attempt's delivery: the token",
    "nothing is moved into a mail that another is sending: the token",
)


@pytest.mark.parametrize("guard", GUARDS, ids=[guard.name for guard in GUARDS])
def test_a_guard_is_where_the_catalogue_says(guard: Guard) -> None:
    """The text that its mutation replaces is there, once, and so is the test that misses it."""
    assert guard.mutated((ROOT / guard.path).read_text())
    file, _, function = guard.test.partition("::")
    assert f"def {function}(" in (ROOT / "tests" / file).read_text()


def test_the_page_of_guards_tells_of_all_of_them() -> None:
    """It is made from the catalogue."""
    assert (ROOT / "docs" / "guards.md").read_text() == page()


@pytest.mark.slow
def test_guards_that_are_taken_out_are_missed(tmp_path: Path) -> None:
    """A sample of them: the test that the catalogue names fails without the guard."""
    copy_to(tmp_path)
    chosen = [guard for guard in GUARDS if guard.name in SAMPLE]
    assert len(chosen) == len(SAMPLE)
    verdicts = [break_guard(tmp_path, guard) for guard in chosen]
    assert [verdict.guard.name for verdict in verdicts if not verdict.killed] == []
