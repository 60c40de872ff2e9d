"""`pipeline worker` and `pipeline scheduler`: the two processes."""

from __future__ import annotations

import os
import sys

import click

from .opening import settings_for_process

#: A worker has a pool of so many connections to the queue: its threads' and its consumer's.
MOST_THREADS = 48


@click.command(short_help="Run workers, which stack and send.")
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Worker processes.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1, max=MOST_THREADS),
    default=8,
    show_default=True,
    help="Threads in each of them.",
)
def worker(processes: int, threads: int) -> None:
    """Run workers, which stack and send, until SIGTERM or Ctrl-C.

    The same as `dramatiq pipeline.worker`, under a supervisor: when a worker process dies, Dramatiq
    stops its siblings too, and all are started again. At the end what is in hand is finished.
    """
    from .supervisor import Supervisor

    settings = settings_for_process()
    assert settings.database_url is not None
    environment = {**os.environ, "PIPELINE_DATABASE_URL": settings.database_url}
    command = [
        sys.executable, "-m", "dramatiq", "pipeline.worker",
        "--processes", str(processes), "--threads", str(threads),
        # While Dramatiq waits for its processes to come up it doesn't see them die.
        "--worker-fork-timeout", "5000",
    ]  # fmt: skip
    raise click.exceptions.Exit(Supervisor(command, environment).run())


@click.command(short_help="Run a scheduler, which ticks and recovers.")
def scheduler() -> None:
    """Run a scheduler, which ticks and recovers, until SIGTERM or Ctrl-C.

    The same as `python scheduler.py`. One is enough; several do no harm and cover for each other.
    """
    from pipeline.scheduler_process import run

    from .logs import log_to_stderr

    log_to_stderr()
    run(settings_for_process())
