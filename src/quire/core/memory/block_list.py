"""The blocks of one sequence, as a paged allocator keeps them."""

from __future__ import annotations

from quire.core.memory.values import BlockTable


class BlockList:
    """One sequence's blocks, on the device or (swapped out) on the host.

    Those of its attention sinks come first; of the others, as many are missing after them as its
    window has left behind.
    """

    __slots__ = (
        "blocks",
        "charge",
        "entries",
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
