"""The scheduler process: `python scheduler.py`, the same as `pipeline scheduler`."""

import sys

from pipeline.cli import main

if __name__ == "__main__":
    raise SystemExit(main(["scheduler", *sys.argv[1:]]))
