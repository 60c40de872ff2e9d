"""What the server's own `postmaster.pid` says, and whether it is still true."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

#: The code of an SSLRequest (PostgreSQL protocol, "Message Formats"): the one question that any
#: server answers before it knows who is asking.
_SSL_REQUEST = struct.pack("!ii", 8, 80877103)
#: Above every process id that an operating system gives out.
_NO_PROCESS = 0x7FFF_FFFF


@dataclass(frozen=True, slots=True)
class Postmaster:
    """A server process that a data folder names; it need not be alive any more."""

    data: Path
    pid: int
    port: int
    socket_folder: str
    status: str

    @property
    def socket_path(self) -> Path:
        return Path(self.socket_folder, f".s.PGSQL.{self.port}")

    @property
    def is_alive(self) -> bool:
        """Whether the process exists and is this folder's server.

        After a reboot the process id may be anybody's, and a killed server stays a zombie for as
        long as process 1 is late to reap it.
        """
        process = _process(self.pid)
        if process is None:
            return False
        state, command = process
        if command.rpartition("/")[2] != "postgres":
            return False
        if state.startswith("Z"):
            # In a container we may be process 1 and have inherited it: then it's ours to reap.
            _reap(self.pid)
            return False
        try:
            return Path(f"/proc/{self.pid}/cwd").samefile(self.data)
        except OSError:
            return True

    @property
    def answers(self) -> bool:
        """Whether the server was ready when last looked at, and listens on its socket."""
        if self.status != "ready":
            return False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
                client.settimeout(5)
                client.connect(str(self.socket_path))
                client.sendall(_SSL_REQUEST)
                return bool(client.recv(1))
        except OSError:
            return False


def read_postmaster(data: Path) -> Postmaster | None:
    """Return the server that the data folder names, None if it names none."""
    try:
        lines = (data / "postmaster.pid").read_text(errors="replace").splitlines()
        # 1 process id, 2 data folder, 3 start time, 4 port, 5 socket folder, 6 address,
        # 7 shared memory, 8 status; a server that is only just starting hasn't written them all
        status = lines[7].strip() if len(lines) > 7 else "starting"
        return Postmaster(data, int(lines[0]), int(lines[3]), lines[4].strip(), status)
    except (OSError, ValueError, IndexError):
        return None


def disown(server: Postmaster) -> None:
    """Let a new server start although a dead one's process id is still, or again, in use.

    Postgres would take that id for a living server. The file must stay all the same: its line on
    shared memory keeps a new server from starting while old backends are still at work. So only
    the id is replaced, by one that can't exist.
    """
    file = server.data / "postmaster.pid"
    rest = file.read_bytes().partition(b"\n")[2]
    with file.open("r+b") as opened:
        opened.write(b"%d\n" % _NO_PROCESS + rest)
        opened.truncate()
    server.socket_path.with_name(f"{server.socket_path.name}.lock").unlink(missing_ok=True)


def _process(pid: int) -> tuple[str, str] | None:
    """Return the state and the command of a process, None if there is no such process."""
    try:
        before, _, after = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        return after.split()[0], before.partition("(")[2]
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    asked = subprocess.run(
        ["ps", "-o", "state=,comm=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, command = asked.stdout.strip().partition(" ")
    return (state, command.strip()) if state else None


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
