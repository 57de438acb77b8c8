"""A prefill engine's blocks, handed to whoever asks.

After the hellos, any number of times::

    uint32    blocks asked for, at most 4096
    16 bytes  of each its name

and back, for each in order: a byte, 1 before its record (see ``quire.store.record``), or 0: it is
not here. Integers are little-endian.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import threading

from quire.errors import ConfigError
from quire.store import RecordShelf
from quire.transfer.connection import Connection
from quire.transfer.identity import Identity, TransferError

logger = logging.getLogger(__name__)

QUESTION = struct.Struct("<I")
NAME_BYTES = 16
MOST_NAMES = 4096
_MOST_CONNECTIONS = 64
_MOST_SECONDS = 60.0  # of a connection


class BlockServer:
    """Answers from a shelf, each peer in a thread. Listens from the beginning; to be closed."""

    def __init__(self, host: str, port: int) -> None:
        try:
            self._listener = socket.create_server((host, port))
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"kv_transfer_config: {host}:{port} cannot be listened on: {error}"
            ) from error
        self.host, self.port = host, int(self._listener.getsockname()[1])
        self._free = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self.num_sent = 0  # records

    def start(self, shelf: RecordShelf, identity: Identity) -> None:
        """Answer with what is on the shelf."""
        arguments = [shelf, identity]
        threading.Thread(
            target=self._accept, args=arguments, name="quire-blocks", daemon=True
        ).start()

    def close(self) -> None:
        """Let nobody in any more; who is being answered is answered."""
        with contextlib.suppress(OSError):  # wakes who waits for the next one
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self, shelf: RecordShelf, identity: Identity) -> None:
        while True:
            try:
                wire, address = self._listener.accept()
            except OSError:  # closed
                return
            if not self._free.acquire(blocking=False):
                wire.close()
                continue
            arguments = (wire, str(address[0]), shelf, identity)
            threading.Thread(target=self._serve, args=arguments, daemon=True).start()

    def _serve(
        self, wire: socket.socket, peer: str, shelf: RecordShelf, identity: Identity
    ) -> None:
        try:
            with Connection(wire, _MOST_SECONDS) as connection:
                connection.greet(identity)
                while True:
                    self._answer(connection, shelf)
        except TransferError as error:
            logger.debug("blocks for %s: %s", peer, error)
        except Exception:  # nobody's blocks are worth the thread's silence
            logger.exception("blocks for %s", peer)
        finally:
            self._free.release()

    def _answer(self, connection: Connection, shelf: RecordShelf) -> None:
        (count,) = QUESTION.unpack(connection.receive(QUESTION.size))
        if count > MOST_NAMES:
            raise TransferError(f"it asks for {count} blocks at once")
        asked = connection.receive(count * NAME_BYTES)
        names = [asked[at : at + NAME_BYTES] for at in range(0, len(asked), NAME_BYTES)]
        for name in names:
            record = shelf.find(name)
            if record is None:
                connection.send(b"\0")
            else:
                connection.send(b"\1", record)
                self.num_sent += 1
