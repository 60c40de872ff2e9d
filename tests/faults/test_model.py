"""The model of the protocol, searched whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.model.page import POLICIES, counterexample, page
from tests.faults.model.protocol import GUARDS
from tests.faults.model.search import search


@pytest.mark.parametrize("policy", POLICIES)
def test_no_state_of_the_model_breaks_a_promise(policy: str) -> None:
    """Whoever crashes or is frozen wherever, and whatever the server does; and an end is always in
    reach."""
    found = search(policy)
    assert found.trace == []
    assert found.stuck == 0
    assert found.states > 10_000


@pytest.mark.parametrize("guard", list(GUARDS))
def test_each_guard_of_the_model_is_needed(guard: str) -> None:
    """Without it the search finds a way to break a promise."""
    assert counterexample(guard)[1].trace


@pytest.mark.slow
def test_the_page_of_the_model_is_what_the_search_finds() -> None:
    """It is made by searching."""
    written = Path(__file__).resolve().parents[2].joinpath("docs", "model.md").read_text()
    assert written == page()
