"""Serves a prefill engine's blocks to other engines.

First each says its ``Identity``, and proves that it has the key if there is one. Then the one sends
``WantedBlocks``, any number of times, and the other answers each with a ``SentBlock`` for every
name, in order, whose payload is the record (``quire.blocks.store.record``) if it has one. Or it
sends ``WantedState``, and the answer is the deepest that there is, as a ``SentState``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated

from msgspec import Meta, Struct, structs
from msgspec.msgpack import Decoder

from quire.blocks.store import RecordShelf
from quire.blocks.store.shelf import Record
from quire.blocks.transfer.key import Proof, SharedKey
from quire.core.errors import ConfigError
from quire.core.memory import BlockHash, name_of_state
from quire.core.scheduling import Capability
from quire.kernels.transport import Guest, PeerError, Port

MOST_NAMES = 4096  # of blocks that are wanted at once
_Name = Annotated[bytes, Meta(min_length=16, max_length=16)]


class Identity(Struct, tag=True, frozen=True):
    """Digests of all that decides a block's bits beside its text, by part.

    nonce: of this connection, where there is a key.
    """

    parts: Mapping[str, str]
    nonce: Annotated[bytes, Meta(max_length=64)] = b""

    def compare(self, theirs: Identity) -> None:
        """PeerError, naming what differs, unless a peer's identity is the same."""
        # Whatever a peer calls its parts goes into no log.
        different = sorted(
            name for name, ours in self.parts.items() if theirs.parts.get(name) != ours
        )
        if different or len(theirs.parts) != len(self.parts):
            which = ", ".join(different) or "parts that we do not know"
            raise PeerError(f"its blocks are others than ours: {which} differ")
        if bool(theirs.nonce) is not bool(self.nonce):
            raise PeerError("one of the two has a key, the other none (kv_transfer_config)")


class WantedBlocks(Struct, tag=True, frozen=True):
    """The names of blocks that a peer would like to have."""

    names: Annotated[list[_Name], Meta(max_length=MOST_NAMES)]


class SentBlock(Struct, tag=True, frozen=True):
    """One of them, or that it is not there."""

    found: bool


class WantedState(Struct, tag=True, frozen=True):
    """The names of a text's blocks, after one of which a peer would like to go on from a state."""

    names: Annotated[list[_Name], Meta(max_length=MOST_NAMES)]


class SentState(Struct, tag=True, frozen=True):
    """How many of the names lead to it; 0: none of them does."""

    depth: Annotated[int, Meta(ge=0, le=MOST_NAMES)]


GREETING, QUESTION = Decoder(Identity), Decoder(WantedBlocks | WantedState)
ANSWER, STATE, PROOF = Decoder(SentBlock), Decoder(SentState), Decoder(Proof)


class BlockServer(Capability):
    """Answers from a record cache. Listens at once; must be closed.

    num_sent: records.
    """

    def __init__(self, host: str, port: int, key: SharedKey | None = None) -> None:
        self.key = key or SharedKey()
        try:
            self._listener = Port(host, port)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"kv_transfer_config: {host}:{port} cannot be listened on: {error}"
            ) from error
        self.host, self.port = host, self._listener.port
        self.num_sent = 0

    def start(
        self, shelf: RecordShelf, identity: Identity, states: RecordShelf | None = None
    ) -> None:
        """Answer with the records in ``shelf``, and ``states`` where layers keep some."""
        self._listener.start(partial(self._serve, shelf, states, identity), "quire-blocks")

    def close(self) -> None:
        """Accept no more peers; answers that have begun are finished."""
        self._listener.close()

    async def _serve(
        self, shelf: RecordShelf, states: RecordShelf | None, identity: Identity, guest: Guest
    ) -> None:
        theirs, nonce = await guest.receive(GREETING), self.key.nonce()
        ours = structs.replace(identity, nonce=nonce)
        await guest.send(ours)
        ours.compare(theirs)
        if self.key:
            await guest.send(self.key.proof("serves", theirs.nonce, nonce))
            proof = await guest.receive(PROOF)
            self.key.check(proof, "fetches", nonce, theirs.nonce)
        while True:
            question = await guest.receive(QUESTION)
            if isinstance(question, WantedState):
                depth, state = _deepest(states, question.names)
                await guest.send(SentState(depth), state)
                self.num_sent += depth > 0
                continue
            for name in question.names:
                record = shelf.find(name)
                await guest.send(SentBlock(record is not None), record or b"")
                self.num_sent += record is not None


def _deepest(states: RecordShelf | None, names: Sequence[BlockHash]) -> tuple[int, Record]:
    """How many of a text's blocks the deepest state has seen that there is, and its record."""
    for depth in range(len(names) if states is not None else 0, 0, -1):
        assert states is not None
        found = states.find(name_of_state(names[depth - 1]))
        if found is not None:
            return depth, found
    return 0, b""
