"""Measures the pipeline, and writes docs/performance.md with its plots and numbers.

python -m benchmarks [FIGURE ...] [--quick]
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from benchmarks import (
    backlog,
    dispatch,
    fleets,
    latency,
    peers,
    producers,
    report,
    sending,
    upkeep,
    work,
)
from benchmarks.bench import Bench, opened
from benchmarks.machine import described
from benchmarks.measuring import Finding

FIGURES: dict[str, Callable[[Bench], Finding]] = {
    "dispatch": dispatch.dispatch,
    "scale": dispatch.scale,
    "beside": backlog.beside,
    "extremes": backlog.extremes,
    "memory": backlog.memory,
    "sending": sending.sending,
    "workers": fleets.workers,
    "limits": fleets.limits,
    "work": work.database_work,
    "latency": latency.latency,
    "producers": producers.producers,
    "snapshot": fleets.snapshot,
    "upkeep": upkeep.upkeep,
    "profile": work.profile,
    "peers": peers.peers,
}

DOCS = Path(__file__).resolve().parent.parent / "docs"


def main() -> int:
    """Run the figures that are asked for; 1 if one of them broke."""
    parser = argparse.ArgumentParser(
        prog="python3 dev.py bench", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument(
        "figures", nargs="*", metavar="FIGURE", help=f"all unless named: {', '.join(FIGURES)}"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, once: does it work?")
    parser.add_argument("--scale", type=float, default=1.0, help="part of the full size (1.0)")
    parser.add_argument("--repeat", type=int, default=3, help="how often each is measured (3)")
    parser.add_argument(
        "--most-rows", type=int, default=1_000_000, help="the largest backlog (1,000,000)"
    )
    parser.add_argument(
        "--docs", type=Path, default=DOCS, help="where performance.md and performance/ go"
    )
    options = parser.parse_args()
    if unknown := set(options.figures) - set(FIGURES):
        parser.error(f"no such figure: {', '.join(sorted(unknown))}")
    if options.quick:
        options.scale, options.repeat, options.most_rows = 0.05, 1, 20_000
    folder: Path = options.docs / "performance"
    broken = []
    with opened(scale=options.scale, repeat=options.repeat, most_rows=options.most_rows) as bench:
        for name in options.figures or FIGURES:
            started = time.monotonic()
            machine = described(bench)
            try:
                finding = FIGURES[name](bench)
            except Exception:  # noqa: BLE001 -- the others are measured all the same
                traceback.print_exc()
                broken.append(name)
                continue
            report.write(folder, finding, machine)
            text = report.page(folder, list(FIGURES))
            (options.docs / "performance.md").write_text(text, encoding="utf-8")
            print(f"{name} ({time.monotonic() - started:.0f} s): {finding.found}", flush=True)
    if broken:
        print(f"broken: {', '.join(broken)}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
