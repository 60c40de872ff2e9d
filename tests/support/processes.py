"""Processes of a test's own, some of them another user's."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable


def fork(work: Callable[[], object], uid: int | None = None) -> int:
    """Do the work in a forked child, as another user if root is asked to, and return its pid.

    The child ends with status 0 if the work returns, else with 1 and a traceback. It can't
    import what lies in folders that are closed to the user: import that before.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        if uid is not None:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
        work()
        status = 0
    except BaseException:  # noqa: BLE001 -- it is told, and nothing may leave the child
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(status)


def exit_status(pid: int) -> int:
    """Wait for a child and return its exit status; minus the signal if one killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
