"""What rank 0 and another rank say to each other beside steps: JSON over a socket."""

from __future__ import annotations

import contextlib
import json
import math
import select
import socket
import threading
import time
from typing import Any

from quire.core.errors import RankError

_MOST = 1 << 20  # bytes of a message: whoever announces more is no rank of ours
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}

Message = dict[str, Any]


class Line:
    """Messages, each a JSON object that says its ``kind``, its length in four bytes before it.

    Both ends may send from any thread; one thread receives.
    """

    def __init__(self, connection: socket.socket, silence: float | None = None) -> None:
        """silence: seconds for which the other machine may take nothing of what is sent to it, or
        else it is gone. RankError: it is gone already."""
        self._socket = connection
        self._sending = threading.Lock()
        self.peer = ""  # its address, for people; empty: a process of this machine
        if connection.family == socket.AF_UNIX:
            return
        options = dict(_KEEPALIVE)
        if silence is not None:  # TCP by itself goes on sending for a quarter of an hour
            options["TCP_USER_TIMEOUT"] = int(1000 * silence)
        try:
            self.peer = str(connection.getpeername()[0])
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in options.items():
                if hasattr(socket, name):
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        except OSError as error:
            raise RankError(f"its connection is closed ({error.strerror})") from error

    def send(self, kind: str, **content: Any) -> None:
        """RankError: the other end is gone."""
        message = json.dumps({"kind": kind, **content}).encode()
        try:
            with self._sending:
                self._socket.sendall(len(message).to_bytes(4, "big") + message)
        except OSError as error:
            raise RankError(f"its connection is closed ({error.strerror})") from error

    def receive(self, seconds: float | None = None) -> Message:
        """The next message. RankError: the other end is gone, silent for so long, or no rank."""
        size = int.from_bytes(self._read(4, seconds), "big")
        if size > _MOST:
            raise RankError("it does not speak as ranks do")
        try:
            message = json.loads(self._read(size, seconds))
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
            raise RankError("it does not speak as ranks do")
        return message

    def close(self) -> None:
        """Whoever waits for a message at either end is told that there will be none."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read(self, size: int, seconds: float | None) -> bytes:
        content = bytearray()
        deadline = None if seconds is None else time.monotonic() + seconds
        try:
            poll = select.poll()  # a timeout of the socket's would be the senders', too
            poll.register(self._socket, select.POLLIN)
            while len(content) < size:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not poll.poll(None if left is None else math.ceil(1000 * left)):
                    raise RankError(f"it has not answered for {seconds:g} seconds")
                part = self._socket.recv(size - len(content))
                if not part:
                    raise RankError("its connection was closed")
                content += part
        except (OSError, ValueError) as error:
            raise RankError("its connection was closed") from error
        return bytes(content)
