"""Writes what was found: a JSON file and the plots of each figure, and one page of all of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measuring import Finding
from benchmarks.plots import svg

INTRODUCTION = """# Performance

Measured by one command, which makes this page, its plots and the numbers behind them:

```sh
python3 dev.py bench             # all of it
python3 dev.py bench sending     # one figure; `python3 dev.py bench --help` names them
python3 dev.py bench --quick     # small sizes, to see whether it works
```

Each figure is measured beside its bare cost in the same run, on a Postgres with default settings
and `fsync` on. Where a measurement was repeated, the median is given and in brackets the lowest
and the highest. The numbers behind the page are in [`performance/`](performance/). What follows
from them for an installation is in [Capacity](capacity.md).
"""


def write(folder: Path, finding: Finding, machine: dict[str, Any]) -> None:
    """One figure's JSON and plots."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {**finding.as_json(), "machine": machine}
    path = folder / f"{finding.name}.json"
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for plot in finding.plots:
        (folder / f"{plot.name}.svg").write_text(svg(plot), encoding="utf-8")


def page(folder: Path, order: Sequence[str]) -> str:
    """The page of all figures that were ever measured into this folder, as Markdown."""
    found = [
        json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        for name in order
        if (folder / f"{name}.json").exists()
    ]
    lines = [INTRODUCTION, *_summary(found)]
    for content in found:
        lines += _section(content, folder.name)
    lines += _machines(found)
    return "\n".join(lines).rstrip() + "\n"


def _summary(found: list[dict[str, Any]]) -> list[str]:
    marks = {True: "reached", False: "**not reached**", None: "–"}
    return [
        *_table(
            ["figure", "limit", "found", ""],
            [
                [
                    f"[{content['title']}](#{_anchor(content['title'])})",
                    content["limit"],
                    content["found"],
                    marks[content["reached"]],
                ]
                for content in found
            ],
        ),
        "",
    ]


def _section(content: dict[str, Any], folder: str) -> list[str]:
    return [
        f"## {content['title']}",
        "",
        f"Limit: {content['limit']}. Found: {content['found']}.",
        "",
        *_table(content["columns"], content["rows"]),
        "",
        *(f"![{content['title']}]({folder}/{name}.svg)\n" for name in content["plots"]),
        content["about"],
        "",
    ]


def _machines(found: list[dict[str, Any]]) -> list[str]:
    lines = ["## Measured on", ""]
    told: dict[str, list[str]] = {}
    for content in found:
        machine = content["machine"]
        packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
        postgres = ", ".join(f"{name} {value}" for name, value in machine["postgres"].items())
        text = (
            f"{machine['cores']} cores of {machine['processor']}, "
            f"{machine['memory_gigabytes']} GB, {machine['system']}; Python {machine['python']}; "
            f"{packages}. Postgres: {postgres}. Scale {machine['scale']:g}, "
            f"{machine['repeat']} repetitions."
        )
        moment = f"{content['name']} {machine['measured_at'][:16].replace('T', ' ')} UTC"
        told.setdefault(text, []).append(f"{moment} (load before: {machine['load_before']})")
    for text, moments in told.items():
        lines += [text, "", *(f"- {moment}" for moment in moments), ""]
    return lines


def _table(columns: list[str], rows: list[list[str]]) -> list[str]:
    return [
        "| " + " | ".join(columns) + " |",
        "|" + "---|" * len(columns),
        *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows),
    ]


def _anchor(title: str) -> str:
    kept = "".join(c for c in title.lower() if c.isalnum() or c in " -")
    return kept.replace(" ", "-")
