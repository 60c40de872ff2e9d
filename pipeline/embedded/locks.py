"""The two file locks that let any number of processes share one server.

`start.lock` is held for as long as it takes to start, join or stop; `users.lock` is held, shared,
for as long as a process uses the server. The kernel lets both go when a process dies, however it
dies. Both are closed, never unlocked: a forked child shares the lock and may still need it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def starting(folder: Path, make: Callable[[], None] | None = None) -> Iterator[None]:
    """Be the only one who starts or stops the folder's server.

    Parameters:
      make: makes the folder. Only who starts a server has it made: for others, that it isn't
        there means that somebody who stopped the server is removing it.

    Raises:
      FileNotFoundError: there is no such folder, or nothing was ever started in it.
    """
    path = folder / "start.lock"
    while True:
        if make is not None:
            make()
        try:
            descriptor = _open(path, create=make is not None)
        except FileNotFoundError:
            if make is None:
                raise
            continue  # it was removed the moment it had been made
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_still(path, descriptor):
                yield
                return
            # The folder was temporary, and the one before us has removed it.
        finally:
            os.close(descriptor)


def use(folder: Path) -> int:
    """Count as a user of the server until the returned descriptor is closed."""
    descriptor = _open(folder / "users.lock", create=True)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def is_unused(folder: Path) -> bool:
    """Tell whether no process uses the server. Ask while `starting`, or the answer is stale."""
    try:
        descriptor = _open(folder / "users.lock", create=False)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _open(path: Path, *, create: bool) -> int:
    return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
