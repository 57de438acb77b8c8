"""Serves a prefill engine's blocks to other engines."""

from __future__ import annotations

from functools import partial

from quire.blocks.store import RecordShelf
from quire.blocks.transfer.identity import Identity, Sent, Wanted
from quire.core.errors import ConfigError
from quire.kernels.transport import Caller, Language, Listener

_GREETING, _QUESTIONS = Language([Identity]), Language([Wanted])


class BlockServer:
    """Answers from a record cache. Listens at once; must be closed.

    num_sent: records.
    """

    def __init__(self, host: str, port: int) -> None:
        try:
            self._listener = Listener(host, port)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"kv_transfer_config: {host}:{port} cannot be listened on: {error}"
            ) from error
        self.host, self.port = host, self._listener.port
        self.num_sent = 0

    def start(self, shelf: RecordShelf, identity: Identity) -> None:
        """Answer with the records in ``shelf``."""
        self._listener.start(partial(self._serve, shelf, identity), "quire-blocks")

    def close(self) -> None:
        """Accept no more peers; answers that have begun are finished."""
        self._listener.close()

    async def _serve(self, shelf: RecordShelf, identity: Identity, caller: Caller) -> None:
        theirs = await caller.receive(_GREETING)
        await caller.send(identity)
        identity.compare(theirs)
        while True:
            for name in (await caller.receive(_QUESTIONS)).names:
                record = shelf.find(name)
                await caller.send(Sent(record is not None), record or b"")
                self.num_sent += record is not None
