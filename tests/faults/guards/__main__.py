"""Break guards, and write down what came of it."""

from __future__ import annotations

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.faults.guards.catalogue import GUARDS
from tests.faults.guards.guard import ROOT, Guard, Verdict, break_guard, copy_to
from tests.faults.guards.page import page

WORKERS = 2


def main(words: list[str]) -> int:
    chosen = [each for each in GUARDS if not words or any(word in each.name for word in words)]
    with tempfile.TemporaryDirectory(prefix="guards-") as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(WORKERS):
            copy = Path(folder, str(number))
            copy_to(copy)
            copies.put(copy)

        def run(guard: Guard) -> Verdict:
            copy = copies.get()
            try:
                verdict = break_guard(copy, guard)
            finally:
                copies.put(copy)
            sys.stdout.write(f"{'killed' if verdict.killed else 'ALIVE ':7} {guard.name}\n")
            sys.stdout.flush()
            return verdict

        with ThreadPoolExecutor(WORKERS) as pool:
            verdicts = list(pool.map(run, chosen))
    alive = [verdict for verdict in verdicts if not verdict.killed]
    for verdict in alive:
        sys.stdout.write(f"\n{verdict.guard.name}\n{verdict.output[-1500:]}\n")
    sys.stdout.write(f"{len(verdicts) - len(alive)} of {len(verdicts)} killed\n")
    if not words and not alive:
        (ROOT / "docs" / "guards.md").write_text(page())
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
