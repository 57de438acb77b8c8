"""Serves a prefill engine's blocks to other engines.

After the hellos, any number of times::

    uint32    blocks wanted, at most 4096
    16 bytes  of each its hash

and back, for each in order: a byte, 1 before its record (see ``quire.blocks.store.record``), or 0
for a missing one. Integers are little-endian.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import threading
import time

from quire.blocks.store import RecordShelf
from quire.blocks.transfer.connection import PeerConnection
from quire.blocks.transfer.identity import Identity, TransferError
from quire.core.errors import ConfigError
from quire.core.scheduling import Capability

logger = logging.getLogger(__name__)

QUESTION = struct.Struct("<I")
NAME_BYTES = 16
MOST_NAMES = 4096
_MOST_CONNECTIONS = 64
_MOST_SECONDS = 60.0  # of a connection
_SLOWEST_SECONDS = 5.0  # that an answer may take while others wait: by then its peer has given up
_PARTING_SECONDS = 1.0  # for the thread of a peer that is dropped


class _ConnectedPeer:
    """A connected peer. since: when its request, or its answer, began."""

    def __init__(self, wire: socket.socket, host: str) -> None:
        self.wire = wire
        self.host = host
        self.asks = True
        self.since = time.monotonic()

    def turn(self, *, asks: bool) -> None:
        self.asks, self.since = asks, time.monotonic()


class BlockServer(Capability):
    """Answers from a record cache, each peer in a thread. Listens at once; must be closed.

    If all threads are taken, the peer that has been silent for longest is dropped for a new one.
    """

    def __init__(self, host: str, port: int) -> None:
        try:
            self._listener = socket.create_server((host, port))
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"kv_transfer_config: {host}:{port} cannot be listened on: {error}"
            ) from error
        self.host, self.port = host, int(self._listener.getsockname()[1])
        self._free = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self._peers: set[_ConnectedPeer] = set()  # changed by whole operations, in any thread
        self.num_sent = 0  # records

    def start(self, shelf: RecordShelf, identity: Identity) -> None:
        """Answer with the records in ``shelf``."""
        arguments = [shelf, identity]
        threading.Thread(
            target=self._accept, args=arguments, name="quire-blocks", daemon=True
        ).start()

    def close(self) -> None:
        """Accept no more peers; answers that have begun are finished."""
        with contextlib.suppress(OSError):  # wakes ``accept``
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self, shelf: RecordShelf, identity: Identity) -> None:
        while True:
            try:
                wire, address = self._listener.accept()
            except OSError:  # closed
                return
            if not self._free.acquire(blocking=False) and not self._make_room():
                wire.close()
                continue
            peer = _ConnectedPeer(wire, str(address[0]))
            self._peers.add(peer)
            threading.Thread(target=self._serve, args=(peer, shelf, identity), daemon=True).start()

    def _make_room(self) -> bool:
        """Drop a peer that keeps a thread for nothing; whether a thread is free now."""
        late = time.monotonic() - _SLOWEST_SECONDS
        idle = [peer for peer in list(self._peers) if peer.asks or peer.since < late]
        if not idle:
            return False
        victim = min(idle, key=lambda peer: peer.since)
        with contextlib.suppress(OSError):  # it has gone
            victim.wire.shutdown(socket.SHUT_RDWR)
        return self._free.acquire(timeout=_PARTING_SECONDS)

    def _serve(self, peer: _ConnectedPeer, shelf: RecordShelf, identity: Identity) -> None:
        try:
            with PeerConnection(peer.wire, _MOST_SECONDS) as connection:
                connection.greet(identity)
                while True:
                    self._answer(peer, connection, shelf)
        except TransferError as error:
            logger.debug("blocks for %s: %s", peer.host, error)
        except Exception:  # a silent thread costs more than these blocks
            logger.exception("blocks for %s", peer.host)
        finally:
            self._peers.discard(peer)
            self._free.release()

    def _answer(self, peer: _ConnectedPeer, connection: PeerConnection, shelf: RecordShelf) -> None:
        peer.turn(asks=True)
        (count,) = QUESTION.unpack(connection.receive(QUESTION.size))
        if count > MOST_NAMES:
            raise TransferError(f"it asks for {count} blocks at once")
        asked = connection.receive(count * NAME_BYTES)
        peer.turn(asks=False)
        names = [asked[at : at + NAME_BYTES] for at in range(0, len(asked), NAME_BYTES)]
        for name in names:
            record = shelf.find(name)
            if record is None:
                connection.send(b"\0")
            else:
                connection.send(b"\1", record)
                self.num_sent += 1
