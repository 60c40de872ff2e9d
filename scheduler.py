"""The scheduler process: `python scheduler.py`, the same as `pipeline scheduler`."""

from pipeline.scheduler_process import main

if __name__ == "__main__":
    raise SystemExit(main())
