"""A network that can be cut: a proxy on loopback between a process and a server."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

#: Bytes handed on at once.
BLOCK = 1 << 16

#: SO_LINGER with no time: the connection is reset, not closed.
RESET = struct.pack("ii", 1, 0)


class Proxy:
    """Hands connections on to a server until it is told to do otherwise.

    Parameters:
      connect: Opens a connection to the server; raises OSError when it can't.
    """

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        self._connect = connect
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        #: Clients, and the server's end of each.
        self._open: dict[socket.socket, socket.socket] = {}
        self._lock = threading.Lock()
        #: Set: bytes pass. Cleared: they are held back, and come when it is set again.
        self._flows = threading.Event()
        self._flows.set()
        #: Cleared: that one end is gone is kept from the other, until it is set again.
        self._tells = threading.Event()
        self._tells.set()
        self._lag = 0.0
        self._refuses = False
        self._is_closed = False
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> int:
        """Reset every connection, and every new one until `mend`.

        Returns:
          How many were open.
        """
        self._refuses = True
        with self._lock:
            cut = len(self._open)
            for client, server in self._open.items():
                _reset(client)
                _reset(server)
        return cut

    def stall(self) -> None:
        """Hold all bytes back until `mend`; connections stay open, new ones are taken."""
        self._flows.clear()

    def half_open(self) -> int:
        """End every connection for the server; whichever end is left learns of it at `mend`.

        Returns:
          How many were open.
        """
        self._tells.clear()
        with self._lock:
            for server in self._open.values():
                _reset(server)
            return len(self._open)

    def delay(self, seconds: float) -> None:
        """Let everything that is sent be on its way for so long, until `mend`."""
        self._lag = seconds

    def mend(self) -> None:
        """Be a network as it should be."""
        self._refuses = False
        self._lag = 0.0
        self._flows.set()
        self._tells.set()

    def close(self) -> None:
        """End all connections and take no more."""
        self._is_closed = True
        self.cut()
        self._flows.set()
        self._tells.set()
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refuses:
                _reset(client)
                client.close()
                continue
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = self._connect()
        except OSError:
            _reset(client)
            client.close()
            return
        if client.family != socket.AF_UNIX:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._open[client] = server
        back = threading.Thread(target=self._pump, args=(server, client), daemon=True)
        back.start()
        self._pump(client, server)
        back.join()
        with self._lock:
            del self._open[client]
        client.close()
        server.close()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while block := source.recv(BLOCK):
                self._flows.wait()
                time.sleep(self._lag)
                sink.sendall(block)
        # An end on one side is one on the other.
        self._tells.wait()
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def _reset(connected: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
