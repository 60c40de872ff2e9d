"""The table of chaos runs says what their reports say."""

from __future__ import annotations

import json
import re
from pathlib import Path

from pipeline.chaos.plan import RATES, Kind
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


def test_the_page_says_how_often_each_thing_happens() -> None:
    """As the plan has it: one or more a row, in this order."""
    page = (ROOT / "docs" / "chaos.md").read_text()
    table = page.partition("|---|---|")[2].partition("\n\n")[0]
    cells = re.findall(r"\| ([^|]*) \|$", table, re.MULTILINE)
    told = re.findall(r"\d+(?:\.\d+)?", " ".join(cells))
    order = [
        Kind.KILL, Kind.FREEZE, Kind.TERMINATE, Kind.RESTART, Kind.CUT_DATABASE, Kind.CUT_RELAY,
        Kind.STALL_DATABASE, Kind.STALL_RELAY, Kind.HALF_DATABASE, Kind.HALF_RELAY,
        Kind.DELAY_DATABASE, Kind.DELAY_RELAY, Kind.MOOD, Kind.DUPLICATE, Kind.DELETE, Kind.DELAY,
    ]  # fmt: skip
    assert set(order) == set(RATES)
    assert [float(each) for each in told] == [RATES[kind][0] for kind in order]


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
