"""The table of chaos runs says what their reports say."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.shell import ROOT

REPORTS = sorted((ROOT / "docs" / "chaos").glob("seed-*.json"))


def row(path: Path) -> str:
    told = json.loads(path.read_text())
    done, ends = told["done"], told["deliveries"]
    cells = [
        f"[{told['seed']}](chaos/{path.stem}.svg)",
        f"`{told['on_uncertain']}`",
        f"{done['kill']} / {done['freeze']}",
        str(done["restart the database"]),
        f"{told['notifications']:,}",
        ", ".join(f"{number:,} {state}" for state, number in ends.items()),
        str(told["lost"]),
        str(told["dispatched_twice"]),
        f"{told['received_more_than_once']} / {told['unexplained']}",
        f"{told['final_after_seconds']:g} s",
    ]
    return f"| {' | '.join(cells)} |"


def test_each_run_is_in_the_table_as_its_report_has_it() -> None:
    """Three seeds, ten minutes each, with everything that a run has to have."""
    page = (ROOT / "docs" / "proof.md").read_text()
    assert len(REPORTS) >= 3
    for path in REPORTS:
        told = json.loads(path.read_text())
        assert told["ok"]
        assert told["minutes"] >= 10
        assert told["done"]["kill"] >= 200
        assert told["done"]["restart the database"] >= 10
        assert told["notifications"] >= 20_000
        assert row(path) in page, row(path)
