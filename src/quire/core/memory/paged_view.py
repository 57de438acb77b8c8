"""A PagedAllocator's pool for those who look at it."""

from __future__ import annotations

from quire.core.memory.occupancy import Occupancy
from quire.core.memory.pool import BlockPool
from quire.core.memory.window import Window


class PagedView:
    """Of a PagedAllocator."""

    def __init__(self, pool: BlockPool, occupancy: Occupancy, window: Window | None) -> None:
        self._pool = pool
        self._occupancy = occupancy
        self.window = window
        self.num_blocks = pool.num_blocks

    @property
    def num_held(self) -> int:
        return self._pool.num_held

    @property
    def num_cached(self) -> int:
        return self._pool.num_cached

    def has_tokens(self, block: int) -> bool:
        return self._occupancy.filled[block] > 0

    def is_cached(self, block: int) -> bool:
        return self._pool.content(block) is not None

    def times_found(self, block: int) -> int:
        return self._pool.times_found[block]

    def num_holders(self, block: int) -> int:
        return self._pool.ref_counts[block]

    def watch(self) -> None:
        self._pool.touched = set()

    def unwatch(self) -> None:
        self._pool.touched = None

    def take_touched(self) -> set[int]:
        touched, self._pool.touched = self._pool.touched or set(), set()
        return touched
