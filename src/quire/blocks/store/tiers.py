"""Blocks in main memory, in front of those on disk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quire.blocks.store.disk import DiskStore
from quire.blocks.store.shelf import RecordShelf
from quire.core.memory import BlockHash, Content
from quire.core.scheduling import Capability


class Tiers(Capability):
    """See ``BlockSource``. A block is stored in both, and fetched from the first that has it.

    num_read: blocks fetched from main memory.
    """

    def __init__(self, shelf: RecordShelf, disk: DiskStore | None) -> None:
        self.shelf, self.disk = shelf, disk
        self.num_read = 0

    def has(self, name: BlockHash) -> bool:
        return self.shelf.has(name) or (self.disk is not None and self.disk.has(name))

    def used(self, names: Iterable[BlockHash]) -> None:
        ordered = list(names)
        self.shelf.used(ordered)
        if self.disk is not None:
            self.disk.used(ordered)

    def clear(self) -> None:
        self.shelf.clear()

    def forget(self, name: BlockHash) -> None:
        """Drop a block that is useless, since another rank lacks its part."""
        self.shelf.forget(name)
        if self.disk is not None:
            self.disk.forget(name)

    def room(self) -> int:
        """See ``BlockSource.room``. Waits for a disk that has no room at the moment."""
        if self.disk is None or self.disk.quiet:
            return self.shelf.room()
        return self.disk.room()

    def read(self, content: Content, kv_group: int, buffers: Sequence[memoryview]) -> None:
        try:
            self.shelf.read(content, kv_group, buffers)
        except OSError:
            if self.disk is None:
                raise
            self.disk.read(content, kv_group, buffers)
        else:
            self.num_read += kv_group == 0

    def write(self, content: Content, parts: Sequence[bytes]) -> None:
        self.shelf.write(content, parts)
        if self.disk is not None:
            self.disk.write(content, parts)

    def seconds_to_fetch(self) -> float:
        """Time to fetch a block from the slower one."""
        return self.shelf.seconds_to_fetch() if self.disk is None else self.disk.seconds_to_fetch()

    def close(self) -> None:
        if self.disk is not None:
            self.disk.close()
