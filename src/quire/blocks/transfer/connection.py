"""A connection with a deadline, whatever its other end does."""

from __future__ import annotations

import socket
import time
from types import TracebackType

from quire.blocks.transfer.identity import HEAD_BYTES, Identity, TooSlow, TransferError, hello_bytes

_PIECE = 1 << 20


class PeerConnection:
    """Reads and writes whole messages until a deadline; failures are TransferErrors."""

    def __init__(self, wire: socket.socket, seconds: float) -> None:
        self._wire = wire
        self._deadline = time.monotonic() + seconds

    @classmethod
    def to(cls, host: str, port: int, seconds: float) -> PeerConnection:
        deadline = time.monotonic() + seconds
        try:
            wire = socket.create_connection((host, port), timeout=seconds)
        except TimeoutError as error:
            raise TooSlow("no connection in time") from error
        except (OSError, ValueError, OverflowError) as error:
            raise TransferError(f"no connection: {error}") from error
        return cls(wire, deadline - time.monotonic())

    def __enter__(self) -> PeerConnection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._wire.close()

    def greet(self, identity: Identity) -> None:
        """Exchange hellos, and continue only with an engine of the same blocks."""
        self.send(identity.hello)
        identity.compare(self.receive(hello_bytes(self.receive(HEAD_BYTES))))

    def send(self, *messages: bytes) -> None:
        for message in messages:
            try:
                self._limit()
                self._wire.sendall(message)
            except TimeoutError as error:
                raise TooSlow("it does not take what is sent in time") from error
            except OSError as error:
                raise TransferError(f"it does not take what is sent: {error}") from error

    def receive(self, count: int) -> bytes:
        """Exactly this many bytes."""
        pieces = bytearray()
        while len(pieces) < count:
            try:
                self._limit()
                piece = self._wire.recv(min(count - len(pieces), _PIECE))
            except TimeoutError as error:
                raise TooSlow("nothing comes in time") from error
            except OSError as error:
                raise TransferError(f"nothing comes: {error}") from error
            if not piece:
                raise TransferError("it has hung up")
            pieces += piece
        return bytes(pieces)

    def _limit(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TooSlow("it is too slow")
        self._wire.settimeout(left)
