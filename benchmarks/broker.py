"""The stock broker and the mended one, side by side, on the same machine in one go.

    python -m benchmarks.broker [--quick] [--only NAME ...] [--json]

Every line is run with dramatiq-pg's own broker and then with `pipeline.broker`: same messages,
same server settings, fsync on. On a machine that does other things as well the absolute numbers
move; the ratios hold. The whole takes about half an hour, `--quick` about eight minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator

from benchmarks import broker_faults, broker_load
from benchmarks.broker_load import Finding

PARTS: dict[str, Callable[[bool], Iterator[Finding]]] = {
    "throughput": broker_load.throughput,
    "cluster": broker_load.cluster,
    "slow": broker_load.slow_actor,
    "steady": broker_load.steady,
    "twice": broker_load.twice,
    "recovery": broker_faults.recovery,
    "delays": broker_faults.delays,
    "poison": broker_faults.poison,
    "pool": broker_faults.pool,
    "restart": broker_faults.restart,
}


def main() -> None:
    """Run what is asked for, and print each finding as it comes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="smaller backlogs, fewer kills")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="NAME")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    started = time.monotonic()
    last = ""
    for name in arguments.only:
        for line, kind, found in PARTS[name](arguments.quick):
            if arguments.json:
                print(json.dumps({"part": name, "line": line, "broker": kind, "found": found}))
            else:
                if line != last:
                    print(line)
                print(f"    {kind:7} {found}")
            last = line
            sys.stdout.flush()
    print(f"{time.monotonic() - started:.0f} s in all", file=sys.stderr)


if __name__ == "__main__":
    main()
