"""Forks children that run an operation, one at a time: everything is imported once.

A request is a line of JSON on standard input, an answer one on standard output: `stopped` when the
child has frozen itself (the next line lets it go on), and `status`, with the child's `report` if it
lived to give one.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from typing import Any

from tests.faults.walk.operations import OPERATIONS
from tests.faults.walk.points import Points


def child(request: dict[str, Any], pipe: int) -> None:
    """Run the operation to its end, if it comes to that, and report."""
    operation = OPERATIONS[request["operation"]]
    prepared = operation.prepare(request)
    points = Points(request["fault"], request["at"], request["when"])
    points.install()
    raised = ""
    try:
        operation.run(prepared)
    except Exception as error:
        logging.getLogger(__name__).exception("The operation raised.")
        raised = f"{'|'.join(each.__name__ for each in type(error).__mro__)}: {error}"
    report = {"reached": points.reached, "labels": points.labels, "raised": raised}
    os.write(pipe, json.dumps(report).encode())


def fork(request: dict[str, Any]) -> tuple[int, int]:
    """A child, and where its report can be read."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    status = 1
    try:
        os.close(reading)
        child(request, writing)
        status = 0
    except BaseException:
        logging.getLogger(__name__).exception("The child broke.")
    finally:
        sys.stderr.flush()
        os._exit(status)


def answer(told: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


def main() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    for line in sys.stdin:
        pid, reading = fork(json.loads(line))
        status = os.waitpid(pid, os.WUNTRACED)[1]
        while os.WIFSTOPPED(status):
            answer({"stopped": pid})
            sys.stdin.readline()
            os.kill(pid, signal.SIGCONT)
            status = os.waitpid(pid, os.WUNTRACED)[1]
        with os.fdopen(reading, "rb") as pipe:
            report = pipe.read()
        answer(
            {
                "status": os.waitstatus_to_exitcode(status),
                "report": json.loads(report) if report else None,
            }
        )


if __name__ == "__main__":
    main()
