"""What a sequence takes, gives back and is charged for, block by block."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.memory.block_list import BlockList
from quire.core.memory.blocks import OUTSIDE, BlockHash, BlockMove, MoveKind
from quire.core.memory.occupancy import Occupancy
from quire.core.memory.pool import BlockPool
from quire.core.memory.prefix import Hits


class Holdings:
    """Changes block lists on the device, and keeps count of their slots and charges."""

    def __init__(self, device: BlockPool, occupancy: Occupancy, block_size: int) -> None:
        self._device = device
        self._occupancy = occupancy
        self._block_size = block_size

    def acquire(self, table: BlockList, block: int) -> None:
        """Put a block that has been shared at the end of a table."""
        table.blocks.append(block)
        table.entries.append(self._device.charged(block))
        table.view = None

    def acquire_new(self, table: BlockList, count: int) -> None:
        """Put ``count`` blocks that are free at the end of a table."""
        if count:
            blocks, entries = self._device.take_all(count)
            table.blocks += blocks
            table.entries += entries
            table.view = None

    def fetch(self, table: BlockList, hits: Hits, names: Sequence[BlockHash]) -> list[BlockMove]:
        """Put new blocks among those of a table, where ``hits`` has found them in a source.

        Each may be found at once, as blocks may that a step is to fill.
        """
        moves = []
        for index, block in enumerate(hits.blocks):
            if block != OUTSIDE:
                continue
            number = index if index < table.num_sinks else index + table.num_dropped
            target = self._device.take()
            self._device.publish(target, names[number])
            self._occupancy.copy(target, self._block_size)
            table.blocks.insert(index, target)
            table.entries.insert(index, self._device.charged(target))
            moves.append(BlockMove(MoveKind.FETCH, number, target))
        return moves

    def write(self, table: BlockList, count: int) -> None:
        """Fill ``count`` slots after the last token, taking blocks as they run out."""
        first = table.num_tokens
        self.acquire_new(table, table.missing(first + count, self._block_size))
        if table.promised > first:
            self._occupancy.reserved -= min(count, table.reserved)
        table.num_tokens = first + count
        self._occupancy.fill(table, first // self._block_size - table.num_dropped)

    def copy_on_write(self, table: BlockList, index: int, offset: int) -> BlockMove:
        """A block of its own, in place of one that others hold too."""
        source, target = table.blocks[index], self._device.take()
        self._occupancy.copy(target, offset)
        table.charge += self._device.charged(source) - table.entries[index]
        self._occupancy.release(source)
        table.blocks[index], table.entries[index] = target, self._device.charged(target)
        table.view = None
        return BlockMove(MoveKind.COPY, source, target)

    def release_first(self, table: BlockList, count: int) -> None:
        """The first ``count`` blocks after the sinks': its window has left them behind."""
        first = table.num_sinks
        gone = slice(first, first + count)
        for block, entry in zip(table.blocks[gone], table.entries[gone], strict=True):
            table.charge += self._device.charged(block) - entry
            self._occupancy.release(block)
        del table.blocks[gone], table.entries[gone]
        table.num_dropped += count
        table.view = None

    def release_last(self, table: BlockList) -> None:
        block = table.blocks.pop()
        table.charge += self._device.charged(block) - table.entries.pop()
        self._occupancy.release(block)
        table.view = None

    def release_all(self, table: BlockList) -> None:
        """And settle what the sequence owes for them.

        Tail first: a prefix is useful without its tail, a tail never without its prefix.
        """
        self._occupancy.reserved -= table.reserved
        blocks, entries = reversed(table.blocks), reversed(table.entries)
        table.charge, freed = self._device.release_all(blocks, entries, table.charge)
        self._occupancy.empty(freed)
        table.entries = []
