"""The blocks of one sequence, as a paged allocator keeps them."""

from __future__ import annotations


class BlockList:
    """One sequence's blocks, on the device or (swapped out) on the host."""

    __slots__ = (
        "blocks",
        "charge",
        "entries",
        "num_dropped",
        "num_published",
        "num_tokens",
        "promised",
        "swapped",
        "view",
    )

    def __init__(self, num_tokens: int, promised: int, num_dropped: int = 0) -> None:
        self.blocks: list[int] = []  # logical block num_dropped and those after it
        self.entries: list[float] = []  # BlockPool.charged of each block when it was acquired
        self.charge = 0.0  # block-seconds, for blocks that have been given back
        self.num_dropped = num_dropped  # leading blocks that its window has left behind
        self.num_tokens = num_tokens
        self.promised = promised  # tokens up to which admission reserved room
        self.num_published = 0
        self.swapped = False
        self.view: tuple[int, ...] | None = None  # of blocks; None once they have changed

    @property
    def reserved(self) -> int:
        """Slots that wait for promised tokens."""
        return max(0, self.promised - self.num_tokens)
