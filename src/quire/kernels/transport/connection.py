"""A connection for threads: whole messages, each within its time."""

from __future__ import annotations

import math
import select
import socket
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Generic, TypeVar

from msgspec import Struct

from quire.kernels.transport.frames import Buffer, Language, PeerError, TooSlow, pieces

_T = TypeVar("_T")

_CLOSED = "its connection was closed"
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}


class Connection(Generic[_T]):
    """One end of it. Any thread may send; one receives.

    All but ``close`` raise a PeerError where the other end is gone, too slow, or a stranger.
    """

    def __init__(
        self, wire: socket.socket, kinds: Sequence[type[_T]], silence: float | None = None
    ) -> None:
        """kinds: of messages that may come.

        silence: seconds for which another machine may take nothing of what is sent to it; TCP by
            itself goes on sending for a quarter of an hour.
        """
        self._wire = wire
        self._language = Language(kinds)
        self._sending = threading.Lock()
        self.peer = ""  # its address, for people; empty: a process of this machine
        wire.setblocking(False)
        weakref.finalize(self, wire.close)
        if wire.family == socket.AF_UNIX:
            return
        options = {"TCP_NODELAY": 1, **_KEEPALIVE}
        if silence is not None:
            options["TCP_USER_TIMEOUT"] = int(1000 * silence)
        try:
            self.peer = str(wire.getpeername()[0])
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in options.items():
                if hasattr(socket, name):
                    wire.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        except OSError as error:
            raise PeerError(_CLOSED) from error

    @classmethod
    def to(cls, host: str, port: int, kinds: Sequence[type[_T]], seconds: float) -> Connection[_T]:
        """A connection to who listens there. PeerError: nobody does."""
        try:
            return cls(socket.create_connection((host, port), seconds), kinds)
        except TimeoutError as error:
            raise TooSlow("no connection in time") from error
        except (OSError, ValueError, OverflowError) as error:
            raise PeerError(f"no connection: {error}") from error

    def __enter__(self) -> Connection[_T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def own_address(self) -> str:
        """This machine's, as the other end reaches it."""
        return str(self._wire.getsockname()[0])

    def send(self, message: Struct, payload: Buffer = b"", seconds: float | None = None) -> None:
        """Send a message; it may be received after this returns."""
        left, deadline = pieces(message, payload), _deadline(seconds)
        with self._sending:
            while left:
                try:
                    sent = self._wire.sendmsg(left)
                except BlockingIOError:
                    self._wait(select.POLLOUT, seconds, deadline)
                except OSError as error:
                    raise PeerError(_CLOSED) from error
                else:
                    left = _behind(left, sent)

    def receive(self, seconds: float | None = None) -> _T:
        """Wait for the next message, which has no payload."""
        return self.receive_along(0, seconds)[0]

    def receive_along(self, most: int, seconds: float | None = None) -> tuple[_T, bytearray]:
        """Wait for the next message and its payload of at most so many bytes."""
        parts, deadline = self._language.arriving(most), _deadline(seconds)
        while True:
            try:
                part = next(parts)
            except StopIteration as whole:
                message: tuple[_T, bytearray] = whole.value
                return message
            self._fill(part, seconds, deadline)

    def comes(self, seconds: float) -> bool:
        """Whether a message, or the end, begins within this time."""
        try:
            self._wait(select.POLLIN, seconds, _deadline(seconds))
        except TooSlow:
            return False
        return True

    def detach(self) -> socket.socket:
        """Give up the socket, for another process."""
        return socket.socket(fileno=self._wire.detach())

    def close(self, last: Struct | None = None) -> None:
        """End what anybody waits in at either end. last: sent if that needs no waiting."""
        with suppress(OSError):
            if last is not None and self._sending.acquire(blocking=False):
                self._wire.sendmsg(pieces(last, b""))
        with suppress(OSError):
            self._wire.shutdown(socket.SHUT_RDWR)
        self._wire.close()

    def _fill(self, part: memoryview, seconds: float | None, deadline: float) -> None:
        while part:
            try:
                count = self._wire.recv_into(part)
            except BlockingIOError:
                self._wait(select.POLLIN, seconds, deadline)
            except OSError as error:
                raise PeerError(_CLOSED) from error
            else:
                if not count:
                    raise PeerError(_CLOSED)
                part = part[count:]

    def _wait(self, event: int, seconds: float | None, deadline: float) -> None:
        """Until the socket is ready; a time-out of its own would be that of other threads, too."""
        left = deadline - time.monotonic()
        try:
            poll = select.poll()
            poll.register(self._wire, event)
            ready = poll.poll(None if left == math.inf else math.ceil(1000 * max(0.0, left)))
        except (OSError, ValueError) as error:  # it has been closed meanwhile
            raise PeerError(_CLOSED) from error
        if not ready:
            raise TooSlow(f"it has not answered for {seconds:g} seconds")


def _deadline(seconds: float | None) -> float:
    return math.inf if seconds is None else time.monotonic() + seconds


def _behind(left: Sequence[memoryview], sent: int) -> list[memoryview]:
    """What is left of these pieces once so many bytes have been sent."""
    kept = []
    for piece in left:
        if sent < piece.nbytes:
            kept.append(piece[sent:])
        sent = max(0, sent - piece.nbytes)
    return kept
