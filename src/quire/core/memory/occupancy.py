"""What the slots of held blocks are doing, in counters."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from quire.core.memory.block_list import BlockList
from quire.core.memory.pool import BlockPool
from quire.core.memory.values import Usage


class Occupancy:
    """Slots that hold a token, counted once for all the owners of a block, and promised ones."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self.reserved = 0  # the sum of BlockList.reserved over tables on the device
        self.filled = array("I", [0]) * pool.num_blocks  # slots of each block that hold a token
        self.used = 0  # the sum of ``filled`` over held blocks
        self._pool = pool
        self._block_size = block_size

    def fill(self, table: BlockList, first: int = 0) -> None:
        """Count the tokens in a table's blocks from ``blocks[first]`` on."""
        size, filled, blocks = self._block_size, self.filled, table.blocks
        for index in range(first, table.filled(size)):
            block, tokens = blocks[index], table.tokens_in(index, size)
            if tokens > filled[block]:
                self.used += tokens - filled[block]
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
        filled = self.filled
        for block in blocks:
            self.used -= filled[block]
            filled[block] = 0

    def recount(self, tables: Iterable[BlockList]) -> bool:
        """Count everything afresh; whether anything was wrong."""
        before = self.used, self.reserved
        self.used, self.filled = 0, array("I", [0]) * self._pool.num_blocks
        self.reserved = 0
        for table in tables:
            self.fill(table)
            self.reserved += table.reserved
            for block in table.blocks:
                if self._pool.content(block) is not None:  # it is full, whatever this one uses
                    self.used += self._block_size - self.filled[block]
                    self.filled[block] = self._block_size
        return before != (self.used, self.reserved)

    def usage(self) -> Usage:
        """The pool's slots by what they are doing."""
        size, pool = self._block_size, self._pool
        free, cached = pool.num_free * size, pool.num_cached * size
        held = pool.num_blocks * size - free
        return Usage(
            used=self.used,
            reserved=self.reserved,
            internal=held - self.used - self.reserved,
            cached=cached,
            free=free - cached,
        )
