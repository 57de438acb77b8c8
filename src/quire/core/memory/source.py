"""Where blocks are that the pool does not have and that need not be computed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from quire.core.memory.blocks import BlockHash, Content


class BlockSource(Protocol):
    """A store, or what another engine has sent. Called from the engine's thread.

    The scheduler calls ``has`` and ``room``, and goes by the answers. The executor calls ``read``
    and ``write``, and by then the answers may no longer be true.
    """

    def has(self, name: BlockHash) -> bool:
        """Whether the block of that name can be fetched, as far as is known now."""
        ...

    def used(self, names: Iterable[BlockHash]) -> None:
        """These blocks are in use, in the pool or by who reads or writes them now.

        The last one is needed longest: of a text, the beginning. Those that are not here are about
        to be written, each of them at its position in this order.
        """
        ...

    def clear(self) -> None:
        """Let nothing be found that is in memory. What is on a disk outlives engines, and stays."""
        ...

    def room(self) -> int:
        """How many more blocks ``write`` would take now; 0 for ever, if nothing can be stored."""
        ...

    def read(self, content: Content, kv_group: int, buffers: Sequence[memoryview]) -> None:
        """Fill ``buffers`` with the bytes of one KV group's block, one after the other.

        OSError if they are not to be had, or differ in the least from what was written for this
        very content; what the buffers hold then is nothing.
        """
        ...

    def write(self, content: Content, parts: Sequence[bytes]) -> None:
        """Keep a block, a part for each KV group, if there is room. Does not wait."""
        ...
