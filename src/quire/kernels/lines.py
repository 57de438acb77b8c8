"""Connections over which ranks of several machines talk: messages, and ends with their reasons."""

from __future__ import annotations

import math
import select
import socket
import struct
import time
import weakref
from contextlib import suppress

from quire.core.errors import ConfigError, RankError

_HELLO = struct.Struct("<12sII")  # what it is, rank, size
_KNOWN_BY = b"quire ranks1"
_HEADER = struct.Struct("<BQ")  # kind, bytes
_MESSAGE, _REFUSAL, _END = range(3)
_STRANGER = 2.0  # seconds for a new connection to say that it is a rank


class RankConnection:
    """A connection to one other rank. All but ``end`` raise RankError if it is gone or too slow."""

    def __init__(self, connection: socket.socket, rank: int, timeout: float) -> None:
        """timeout: seconds that the other may take to read, or to go on with, a message."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.settimeout(timeout)
        self.rank = rank
        self._socket = connection
        self._timeout = timeout
        weakref.finalize(self, connection.close)

    @property
    def own_address(self) -> str:
        """This machine's, as the other reaches it."""
        return str(self._socket.getsockname()[0])

    def send(self, message: bytes, kind: int = _MESSAGE) -> None:
        """Send a message, which may be read after this returns."""
        try:
            self._socket.sendall(_HEADER.pack(kind, len(message)) + message)
        except TimeoutError:
            raise late(self.rank, self._timeout) from None
        except OSError:
            self.check()  # it may have said why
            raise gone(self.rank) from None

    def receive(self, timeout: float) -> bytes | None:
        """A message; None if none has begun within this many seconds."""
        if not self._readable(timeout):
            return None
        kind, size = _HEADER.unpack(self._read(_HEADER.size))
        message = self._read(size)
        if kind == _REFUSAL:
            raise ConfigError(message.decode())
        if kind == _END:
            raise RankError(message.decode())
        return bytes(message)

    def check(self) -> None:
        """RankError if the other rank has ended, announced or not."""
        while self._readable(0.0):
            try:
                seen = self._socket.recv(_HEADER.size, socket.MSG_PEEK)
            except OSError:
                raise gone(self.rank) from None
            if seen and seen[0] == _MESSAGE:
                return  # which will be read
            self.receive(0.0)

    def end(self, reason: str) -> None:
        """Tell the other rank that this one ends, unless it is gone; waiting calls here end."""
        words = reason.encode()
        with suppress(OSError):
            self._socket.setblocking(False)
            self._socket.send(_HEADER.pack(_END, len(words)) + words)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def refuse(self, reason: str) -> None:
        """Tell a process that wants to be a rank why it cannot."""
        with suppress(RankError):
            self.send(reason.encode(), _REFUSAL)
        self._socket.close()

    def _readable(self, timeout: float) -> bool:
        looking = select.poll()
        looking.register(self._socket, select.POLLIN)
        return bool(looking.poll(math.ceil(timeout * 1000)))

    def _read(self, size: int) -> bytearray:
        return read(self._socket, size, self.rank, self._timeout)


def read(connection: socket.socket, size: int, rank: int, timeout: float) -> bytearray:
    """Exactly this many bytes from a rank, within this many seconds."""
    until = time.monotonic() + timeout
    data = bytearray(size)
    view = memoryview(data)
    while view:
        try:
            connection.settimeout(max(until - time.monotonic(), 0.001))
            count = connection.recv_into(view)
        except TimeoutError:
            raise late(rank, timeout) from None
        except OSError:
            count = 0
        if not count:
            raise gone(rank)
        view = view[count:]
    return data


def late(rank: int, timeout: float) -> RankError:
    return RankError(f"rank {rank} did not answer within {timeout:.1f} seconds")


def gone(rank: int) -> RankError:
    return RankError(f"rank {rank} is gone")


def call(
    address: str, port: int, rank: int, size: int, timeout: float, start_timeout: float
) -> RankConnection:
    """Connect to rank 0, once it listens. ConfigError: it does not."""
    until = time.monotonic() + start_timeout
    while True:
        try:
            connection = socket.create_connection((address, port), timeout)
            break
        except OSError as error:
            if time.monotonic() > until:
                reason = f"rank 0 does not listen at {address}:{port}: {error}"
                raise ConfigError(reason) from None
            time.sleep(0.1)
    line = RankConnection(connection, 0, timeout)
    connection.sendall(_HELLO.pack(_KNOWN_BY, rank, size))
    return line


def wait_for_calls(
    address: str, port: int, size: int, timeout: float, start_timeout: float
) -> dict[int, RankConnection]:
    """Connections of all other ranks, for rank 0. A process that is none of them is told so."""
    family, *_, own = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    lines: dict[int, RankConnection] = {}
    until = time.monotonic() + start_timeout
    try:
        listener = socket.create_server(own, family=family, backlog=size)
    except OSError as error:
        raise ConfigError(f"port {port} cannot be listened at: {error}") from None
    with listener:
        while len(lines) < size - 1:
            listener.settimeout(max(until - time.monotonic(), 0.001))
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                missing = sorted(set(range(1, size)) - lines.keys())
                names = ", ".join(map(str, missing))
                raise RankError(
                    f"ranks {names} did not come within {start_timeout:.1f} seconds"
                ) from None
            _admit(connection, lines, size, timeout)
    return lines


def _admit(
    connection: socket.socket, lines: dict[int, RankConnection], size: int, timeout: float
) -> None:
    try:
        known_by, rank, its_size = _HELLO.unpack(read(connection, _HELLO.size, -1, _STRANGER))
    except RankError:
        known_by = b""
    if known_by != _KNOWN_BY:
        connection.close()
        return
    line = RankConnection(connection, rank, timeout)
    if its_size != size:
        line.refuse(f"rank {rank} is one of {its_size}, rank 0 of {size}")
    elif not 0 < rank < size or rank in lines:
        line.refuse(f"there is a rank {rank} already" if rank in lines else f"no rank {rank}")
    else:
        lines[rank] = line
