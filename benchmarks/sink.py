"""An SMTP server that costs next to nothing: it takes every mail, and keeps only the time.

    python -m benchmarks.sink

Prints its port, and when its standard input ends, when it took each mail (`time.monotonic`)
and how many connections there were at once at the most.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import ClassVar

#: What each command is answered; the first letter of a command is enough to tell them apart.
REPLIES = {
    b"E": b"250-sink\r\n250-8BITMIME\r\n250-PIPELINING\r\n250 SMTPUTF8\r\n",
    b"H": b"250 sink\r\n",
    b"M": b"250 2.1.0 Ok\r\n",
    b"R": b"250 2.1.5 Ok\r\n",
    b"D": b"354 Go on\r\n",
    b"N": b"250 2.0.0 Ok\r\n",
    b"Q": b"221 2.0.0 Bye\r\n",
}


class Sink(asyncio.Protocol):
    """One connection."""

    taken_at: ClassVar[list[float]] = []
    connections = 0
    most_connections = 0

    def __init__(self) -> None:
        self.buffer = b""
        self.in_data = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        Sink.connections += 1
        Sink.most_connections = max(Sink.most_connections, Sink.connections)
        transport.write(b"220 sink\r\n")

    def connection_lost(self, error: Exception | None) -> None:
        Sink.connections -= 1

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        self.buffer += data
        while True:
            if self.in_data:
                if not self.buffer.startswith(b".\r\n"):
                    end = self.buffer.find(b"\r\n.\r\n")
                    if end < 0:
                        self.buffer = self.buffer[-4:]
                        return
                    self.buffer = self.buffer[end + 2 :]
                self.buffer = self.buffer[3:]
                self.in_data = False
                Sink.taken_at.append(time.monotonic())
                self.transport.write(b"250 2.0.0 Ok\r\n")
            else:
                line, found, rest = self.buffer.partition(b"\r\n")
                if not found:
                    return
                self.buffer = rest
                letter = line[:1].upper()
                self.in_data = letter == b"D"
                self.transport.write(REPLIES.get(letter, b"500 5.5.1 What?\r\n"))
                if letter == b"Q":
                    self.transport.close()
                    return


async def main() -> None:
    """Serve until standard input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Sink, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    print(json.dumps([Sink.taken_at, Sink.most_connections]), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
