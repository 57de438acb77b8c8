"""The blocks of sequences, as a paged allocator keeps them: what they hold, and what they cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat

from quire.core.memory.blocks import OUTSIDE, BlockHash, BlockMove, MoveKind
from quire.core.memory.kept import Hits
from quire.core.memory.pool import BlockPool
from quire.core.memory.values import BlockTable, Usage


class BlockList:
    """One sequence's blocks, on the device or (swapped out) on the host.

    Those of its attention sinks come first; of the others, as many are missing after them as its
    window has left behind.
    """

    __slots__ = (
        "blocks",
        "charge",
        "entries",
        "leaves_at",
        "num_dropped",
        "num_published",
        "num_sinks",
        "num_tokens",
        "promised",
        "swapped",
        "view",
    )

    def __init__(
        self, num_tokens: int, promised: int, num_dropped: int = 0, num_sinks: int = 0
    ) -> None:
        self.blocks: list[int] = []
        self.entries: list[float] = []  # BlockPool.charged of each block when it was acquired
        self.charge = 0.0  # block-seconds, for blocks that have been given back
        self.leaves_at = 0  # tokens from which on its window leaves more of them behind, at least
        self.num_dropped = num_dropped  # blocks after the sinks' that its window has left behind
        self.num_sinks = num_sinks  # leading blocks that are never left behind
        self.num_tokens = num_tokens
        self.promised = promised  # tokens up to which admission reserved room
        self.num_published = 0
        self.swapped = False
        self.view: BlockTable | None = None  # of blocks; None once they have changed

    def frozen(self, block_size: int) -> BlockTable:
        return BlockTable(tuple(self.blocks), block_size, self.num_dropped, self.num_sinks)

    @property
    def reserved(self) -> int:
        """Slots that wait for promised tokens."""
        return max(0, self.promised - self.num_tokens)

    def filled(self, block_size: int) -> int:
        """How many of ``blocks`` have tokens: the first ones."""
        return -(-self.num_tokens // block_size) - self.num_dropped

    def missing(self, num_tokens: int, block_size: int) -> int:
        """Blocks to take before the sequence has ``num_tokens``."""
        missing = -(-num_tokens // block_size) - self.num_dropped - len(self.blocks)
        return missing if missing > 0 else 0  # for every token, and max() takes longer

    def tokens_in(self, index: int, block_size: int) -> int:
        """How many of the sequence's tokens are in ``blocks[index]``."""
        logical = index if index < self.num_sinks else index + self.num_dropped
        tokens = self.num_tokens - logical * block_size
        return block_size if tokens >= block_size else max(0, tokens)


class Occupancy:
    """Slots that hold a token, counted once for all the owners of a block, and promised ones."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self.reserved = 0  # the sum of BlockList.reserved over tables on the device
        self.filled: dict[int, int] = {}  # of held blocks: slots that hold a token, where some do
        self.used = 0  # the sum of ``filled`` over held blocks
        self._pool = pool
        self._block_size = block_size

    def fill(self, table: BlockList, first: int = 0) -> None:
        """Count the tokens in a table's blocks from ``blocks[first]`` on."""
        size, filled, blocks = self._block_size, self.filled, table.blocks
        last = table.filled(size) - 1  # all before it are full
        for index in range(first, last + 1):
            block, tokens = blocks[index], size if index < last else table.tokens_in(index, size)
            before = filled.get(block, 0)
            if tokens > before:
                self.used += tokens - before
                filled[block] = tokens

    def extend(self, block: int, count: int) -> None:
        """``count`` more slots of a held block hold a token; fewer, if negative."""
        self.filled[block] += count
        self.used += count

    def copy(self, target: int, tokens: int) -> None:
        """A block that has been taken gets the first ``tokens`` of another."""
        self.filled[target] = tokens
        self.used += tokens

    def revive(self, blocks: Iterable[int]) -> None:
        """Count the tokens of cached blocks, which are full, as used again."""
        for block in blocks:
            if not self._pool.ref_counts[block]:
                self.copy(block, self._block_size)

    def release(self, block: int) -> None:
        """One owner of the block fewer."""
        if self._pool.release(block):
            self.empty([block])

    def empty(self, blocks: Iterable[int]) -> None:
        """These blocks have no owner any more."""
        self.used -= sum(map(self.filled.pop, blocks, repeat(0)))

    def recount(self, tables: Iterable[BlockList]) -> bool:
        """Count everything afresh; whether anything was wrong."""
        before = self.used, self.reserved
        self.used, self.filled = 0, {}
        self.reserved = 0
        for table in tables:
            self.fill(table)
            self.reserved += table.reserved
            for block in table.blocks:
                if self._pool.content(block) is not None:  # it is full, whatever this one uses
                    self.used += self._block_size - self.filled.get(block, 0)
                    self.filled[block] = self._block_size
        return before != (self.used, self.reserved)

    def usage(self) -> Usage:
        """The pool's slots by what they are doing."""
        size, pool = self._block_size, self._pool
        free, cached = pool.num_free * size, pool.num_cached * size
        held = pool.num_held * size
        return Usage(
            used=self.used,
            reserved=self.reserved,
            internal=held - self.used - self.reserved,
            cached=cached,
            free=free - cached,
        )


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

    def write_in_place(self, table: BlockList, block: int, end: int, count: int) -> None:
        """``write`` up to slot ``end`` of its last block, which is its own."""
        occupancy = self._occupancy
        if table.promised > table.num_tokens:
            occupancy.reserved -= min(count, table.reserved)
        table.num_tokens += count
        if end > occupancy.filled[block]:
            occupancy.extend(block, end - occupancy.filled[block])

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
