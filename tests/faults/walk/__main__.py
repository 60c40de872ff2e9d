"""The whole walk, or as much of it as the words on the command line name."""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from pipeline.embedded import EmbeddedPostgres
from tests.faults.walk.children import Zygote
from tests.faults.walk.operations import OPERATIONS
from tests.faults.walk.points import FAULTS
from tests.faults.walk.walker import Walk, Walker
from tests.support.postgres import TEMPLATE, fresh_database, make_template
from tests.support.smtp_server import ScriptedServer

WORKERS = 2


def walks(words: list[str]) -> Iterator[tuple[str, str, str]]:
    """Operation, fault and policy of every walk that the words allow."""
    for name, operation in OPERATIONS.items():
        for policy in operation.policies:
            for fault in FAULTS:
                if all(word in (name, fault, policy) for word in words):
                    yield name, fault, policy


@contextmanager
def walker(postgres: EmbeddedPostgres, operation: str, log: Path) -> Iterator[Walker]:
    """A walker with a database, a server and a zygote of its own."""
    template = "template1" if operation == "init" else TEMPLATE
    with (
        fresh_database(postgres, template) as url,
        ScriptedServer() as server,
        Zygote(log) as zygote,
    ):
        yield Walker(url, server, zygote)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(words: list[str]) -> int:
    began = time.monotonic()
    logging.basicConfig(level=logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="walk-") as folder:
        # Beside the folder, which is closed to the user that Postgres runs as.
        data = Path(f"{folder}-postgres")
        with EmbeddedPostgres(data, fsync=False, max_connections=100, temporary=True) as postgres:
            make_template(postgres)

            def run(each: tuple[str, str, str]) -> Walk:
                name, fault, policy = each
                with walker(postgres, name, Path(folder, "-".join(each) + ".log")) as walking:
                    done = walking.walk(name, fault, policy)
                say(
                    f"{name:10} {policy:7} {fault:7} {done.visited:5} points"
                    f" {len(done.wrong):4} wrong"
                )
                for wrong in done.wrong[:20]:
                    say(f"    {wrong}")
                return done

            with ThreadPoolExecutor(WORKERS) as pool:
                results = list(pool.map(run, walks(words)))
    points = sum(done.visited for done in results)
    wrong = sum(len(done.wrong) for done in results)
    minutes = (time.monotonic() - began) / 60
    say(f"{points} points, {wrong} wrong, {minutes:.1f} minutes")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
