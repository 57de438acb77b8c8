"""Messages on a wire, and a connection for threads.

    4 bytes   b"QRE2"
    uint32    bytes of the message, little-endian, at most 1 MiB
    uint64    bytes of its payload, at most what its reader expects
    message   a tagged struct in MessagePack
    payload   bytes that are sent and kept as they are, such as a block's

Nothing that comes is run, and no memory is taken before both sizes have been checked.
"""

from __future__ import annotations

import math
import select
import socket
import struct
import threading
import time
import weakref
from collections.abc import Generator
from contextlib import suppress
from typing import TypeAlias, TypeVar

from msgspec import MsgspecError, Struct
from msgspec.msgpack import Decoder, Encoder

_T = TypeVar("_T")
Buffer: TypeAlias = bytes | bytearray | memoryview

_MAGIC = b"QRE2"
_SIZES = struct.Struct("<IQ")
_MOST = 1 << 20  # bytes of a message
_CLOSED = "its connection was closed"
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
_encode = Encoder().encode


class PeerError(Exception):
    """The process at the other end is of no use any more; says why."""


class TooSlow(PeerError):
    """The other process did not answer in time."""


class Stranger(PeerError):
    """The other process is no Quire of this version, or plays another part."""

    def __init__(self) -> None:
        super().__init__("it does not speak as Quire does")


def pieces(message: Struct, payload: Buffer = b"") -> tuple[memoryview, memoryview]:
    """What is sent of a message, without a copy of its payload."""
    body, along = _encode(message), memoryview(payload).cast("B")
    return memoryview(_MAGIC + _SIZES.pack(len(body), along.nbytes) + body), along


def arriving(decoder: Decoder[_T], most: int) -> Generator[memoryview, None, tuple[_T, bytearray]]:
    """Yields buffers, each to be filled before the next; returns the message and its payload.

    Stranger: it is none that the decoder knows, or its payload is larger than ``most``.
    """
    head = bytearray(len(_MAGIC) + _SIZES.size)
    magic, sizes = memoryview(head)[: len(_MAGIC)], memoryview(head)[len(_MAGIC) :]
    yield magic
    if magic != _MAGIC:
        raise Stranger
    yield sizes
    size, along = _SIZES.unpack(sizes)
    if size > _MOST or along > most:
        raise Stranger
    body = bytearray(size)
    yield memoryview(body)
    try:
        message = decoder.decode(body)
    except (MsgspecError, ValueError, RecursionError):
        raise Stranger from None
    payload = bytearray(along)
    yield memoryview(payload)
    return message, payload


class Connection:
    """One end of a connection. Any thread may send; one receives.

    All but ``close`` raise a PeerError where the other end is gone, too slow, or a stranger.
    """

    def __init__(self, wire: socket.socket, silence: float | None = None) -> None:
        """silence: seconds for which another machine may take nothing of what is sent to it. TCP by
        itself goes on sending for a quarter of an hour.
        """
        self._wire = wire
        self._sending = threading.Lock()
        self.peer = self.own_address = ""  # of the two machines; empty: processes of this one
        wire.setblocking(False)
        weakref.finalize(self, wire.close)
        if wire.family == socket.AF_UNIX:
            return
        options = {"TCP_NODELAY": 1, **_KEEPALIVE}
        if silence is not None:
            options["TCP_USER_TIMEOUT"] = int(1000 * silence)
        try:
            self.peer, self.own_address = wire.getpeername()[0], wire.getsockname()[0]
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in options.items():
                if hasattr(socket, name):
                    wire.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        except OSError as error:
            raise PeerError(_CLOSED) from error

    @classmethod
    def to(cls, host: str, port: int, seconds: float) -> Connection:
        """A connection to a port. PeerError: nobody listens there."""
        try:
            return cls(socket.create_connection((host, port), seconds))
        except TimeoutError as error:
            raise TooSlow("no connection in time") from error
        except (OSError, ValueError, OverflowError) as error:
            raise PeerError(f"no connection: {error}") from error

    def send(self, message: Struct, payload: Buffer = b"", seconds: float | None = None) -> None:
        """Send a message; it may be received after this returns."""
        deadline = _deadline(seconds)
        with self._sending:
            for piece in pieces(message, payload):
                while piece:
                    try:
                        piece = piece[self._wire.send(piece) :]
                    except BlockingIOError:
                        self._wait(select.POLLOUT, seconds, deadline)
                    except OSError as error:
                        raise PeerError(_CLOSED) from error

    def receive(self, decoder: Decoder[_T], seconds: float | None = None) -> _T:
        """Wait for the next message, which has no payload."""
        return self.receive_along(decoder, 0, seconds)[0]

    def receive_along(
        self, decoder: Decoder[_T], most: int, seconds: float | None = None
    ) -> tuple[_T, bytearray]:
        """Wait for the next message and its payload of at most ``most`` bytes."""
        parts, deadline = arriving(decoder, most), _deadline(seconds)
        while True:
            try:
                part = next(parts)
            except StopIteration as whole:
                message: tuple[_T, bytearray] = whole.value
                return message
            while part:
                part = part[self._fill(part, seconds, deadline) :]

    def detach(self) -> socket.socket:
        """Give up the socket, for another process."""
        return socket.socket(fileno=self._wire.detach())

    def close(self) -> None:
        """End what anybody waits in, at either end."""
        with suppress(OSError):
            self._wire.shutdown(socket.SHUT_RDWR)
        self._wire.close()

    def _fill(self, part: memoryview, seconds: float | None, deadline: float) -> int:
        """Receive some bytes of ``part``; how many."""
        while True:
            try:
                count = self._wire.recv_into(part)
            except BlockingIOError:
                self._wait(select.POLLIN, seconds, deadline)
            except OSError as error:
                raise PeerError(_CLOSED) from error
            else:
                if not count:
                    raise PeerError(_CLOSED)
                return count

    def _wait(self, event: int, seconds: float | None, deadline: float) -> None:
        """Wait until the socket is ready; a time-out of the socket would bind other threads too."""
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
