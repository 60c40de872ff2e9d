"""Runs a command that is killed when the process that started it dies, however that one died.

A file that stands for itself: it is run by its path, without the package, so that it costs little.
"""

from __future__ import annotations

import os
import sys

#: prctl(2): the signal that a process gets when its parent dies. It survives an exec.
PR_SET_PDEATHSIG = 1
SIGKILL = 9


def tied(command: list[str]) -> list[str]:
    """The command, to be started by this process and to die with it.

    To be started from the main thread: what Linux watches is the thread that started it.
    On other systems the command runs as it is.
    """
    if sys.platform != "linux":
        return command
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def main() -> None:
    """Become the command."""
    import ctypes

    parent, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)
    if os.getppid() != int(parent):
        sys.exit("the process that started this one is gone")
    os.execvp(command[0], command)  # noqa: S606 - as with subprocess, a list without a shell


if __name__ == "__main__":
    main()
