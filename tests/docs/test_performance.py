"""The pages performance.md and capacity.md, and the command that measures."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks import report
from benchmarks.__main__ import FIGURES
from benchmarks.measuring import Bars, Lines, sample
from benchmarks.plots import svg
from pipeline import Settings
from tests.support.shell import ROOT

PAGE = ROOT / "docs" / "performance.md"
FOLDER = ROOT / "docs" / "performance"


def test_the_page_says_what_was_measured() -> None:
    """Nobody has written a figure by hand: the page is made of the numbers beside it."""
    assert PAGE.read_text() == report.page(FOLDER, list(FIGURES))


def test_every_figure_was_measured_with_the_disk_waited_for() -> None:
    """None is missing, and each says on which machine, with which versions and settings."""
    for name in FIGURES:
        content = json.loads((FOLDER / f"{name}.json").read_text())
        assert content["machine"]["postgres"]["fsync"] == "on"
        assert content["machine"]["cores"] >= 1
        for plot in content["plots"]:
            ET.parse(FOLDER / f"{plot}.svg")


def test_the_page_on_capacity_names_settings_that_exist() -> None:
    """A setting that was renamed is renamed there too."""
    text = (ROOT / "docs" / "capacity.md").read_text()
    known = {f"PIPELINE_{field.name.upper()}" for field in fields(Settings)}
    assert set(re.findall(r"PIPELINE_[A-Z_]+", text)) <= known


def test_plots_are_pictures() -> None:
    """Text in them is escaped, and a single point or a lone zero is no trouble."""
    lines = Lines("a", "a < b & c", "x", "y", {"one": [(1, 0.0)], "two": [(10, 5.0)]}, log_x=True)
    bars = Bars("b", "b", "s", [("none", 0.0, 0.0, 0.0), ("some", 2.0, 1.0, 3.0)])
    for plot in (lines, bars):
        assert ET.fromstring(svg(plot)).tag.endswith("svg")


def test_a_sample_tells_its_median_and_its_spread() -> None:
    """Percentiles are values that were measured."""
    values = sample([4.0, 1.0, 3.0, 2.0])
    assert (values.median, values.low, values.high) == (2.5, 1.0, 4.0)
    assert (values.percentile(0.5), values.percentile(0.99), values.percentile(0)) == (2, 4, 1)
    assert values.told(" s") == "2.50 s (1.00–4.00)"


@pytest.mark.slow
def test_one_figure_can_be_measured_alone(tmp_path: Path) -> None:
    """The command writes its page, its numbers and its plot."""
    command = [sys.executable, "-m", "benchmarks", "dispatch", "--quick", "--docs", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "dispatch" in done.stdout
    assert (tmp_path / "performance" / "dispatch.svg").exists()
    assert "Dispatch against the bare writes" in (tmp_path / "performance.md").read_text()
