"""A connection whose arrivals are timed by the kernel.

A client that shares its two cores with the server is late itself to see that something has come.
The kernel notes when it came, and tells on request.
"""

from __future__ import annotations

import socket
import struct
import time
from contextlib import suppress

_SO_TIMESTAMPNS = 35  # Linux, on x86 and ARM
_NANOSECONDS = struct.Struct("=qq")  # seconds, and the rest


class TimedConnection:
    """One request on a connection of its own, sent as it is made. Raises OSError.

    sent, and every time of an arrival, are seconds of ``time.time()``.
    """

    def __init__(self, address: tuple[str, int], request: bytes, patience: float) -> None:
        self.sent = time.time()
        self._socket = socket.create_connection(address, patience)
        with suppress(OSError):  # another system: then by the clock of this process
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._socket.sendall(request)

    def receive(self) -> tuple[float, bytes]:
        """When something came, and what; nothing at the end. TimeoutError after the patience."""
        data, notes, _, _ = self._socket.recvmsg(1 << 16, 64)
        for _, kind, note in notes:
            if kind == _SO_TIMESTAMPNS and len(note) == _NANOSECONDS.size:
                seconds, rest = _NANOSECONDS.unpack(note)
                return seconds + rest / 1e9, data
        return time.time(), data

    def close(self) -> None:
        self._socket.close()
