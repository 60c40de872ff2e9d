"""A small process that outlives a server's users, to stop it when the last one was killed."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from .server import EmbeddedPostgres

#: Seconds between two looks, and so the time that a server may outlive its users.
_INTERVAL = 1.0

#: Runs without the rest of the package, and without any that is installed: small and quick.
_START = "import sys; sys.path.append(sys.argv.pop(1)); from embedded.guard import main; main()"


def command(folder: Path, binaries: Path, pid: int, *, temporary: bool) -> list[str]:
    """Return the arguments for a Python that shall guard the server with this process id."""
    package = Path(__file__).resolve().parent.parent
    arguments = [str(folder), str(binaries), str(pid), *(["--temporary"] if temporary else [])]
    return ["-I", "-S", "-c", _START, str(package), *arguments]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("binaries", type=Path)
    parser.add_argument("pid", type=int)
    parser.add_argument("--temporary", action="store_true")
    arguments = parser.parse_args()
    if os.fork():
        os._exit(0)  # whoever started us has no child to reap
    server = EmbeddedPostgres(
        arguments.folder, temporary=arguments.temporary, binaries=arguments.binaries
    )
    while server.pid == arguments.pid:
        time.sleep(_INTERVAL)
        if server.pid != arguments.pid or server.stop_if_unused():
            return
