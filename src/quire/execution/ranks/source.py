"""Blocks beyond the pool, of which each rank has its part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from quire.core.memory import BlockHash, BlockSource, Content


class Part(BlockSource, Protocol):
    """A rank's own."""

    def forget(self, name: BlockHash) -> None:
        """Whatever there is of that block is of no use: another rank lacks its part of it."""
        ...


class SharedSource:
    """Rank 0's part, by which is decided what is fetched and stored; see ``BlockSource``.

    The other ranks do the same with theirs, as they are told: so what they give up first, where
    room is scarce, is what rank 0 gives up.
    """

    def __init__(self, own: Part) -> None:
        self._own = own
        self._used: list[BlockHash] = []  # not told yet
        self._cleared = False  # the same

    def has(self, name: BlockHash) -> bool:
        """See ``BlockSource.has``. What another rank lacks all the same, a fetch finds out."""
        return self._own.has(name)

    def used(self, names: Iterable[BlockHash]) -> None:
        ordered = list(names)
        self._own.used(ordered)
        self._used += ordered

    def take_used(self) -> list[BlockHash]:
        """What others are to be told of, once."""
        used, self._used = self._used, []
        return used

    def clear(self) -> None:
        """See ``BlockSource.clear``. By this rank's part is decided, so others may hear it late."""
        self._own.clear()
        self._used.clear()
        self._cleared = True

    def take_cleared(self) -> bool:
        """Whether others are to be told of it, once."""
        cleared, self._cleared = self._cleared, False
        return cleared

    def room(self) -> int:
        return self._own.room()

    def forget(self, name: BlockHash) -> None:
        self._own.forget(name)

    def read(self, content: Content, kv_group: int, buffers: Sequence[memoryview]) -> None:
        self._own.read(content, kv_group, buffers)

    def write(self, content: Content, parts: Sequence[bytes]) -> None:
        self._own.write(content, parts)
