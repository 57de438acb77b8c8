"""A pool for those who look at every block and change none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quire.core.memory.blocks import BlockHash
from quire.core.memory.holdings import Occupancy
from quire.core.memory.kept import Window
from quire.core.memory.pages import PageShare, SharedPool
from quire.core.memory.pool import BlockPool, Eviction


class PoolView(Protocol):
    """The device blocks of one KV group."""

    @property
    def num_blocks(self) -> int:
        """That it has, or may have of pages that it shares."""
        ...

    @property
    def share(self) -> PageShare | None:
        """Of pages that KV groups share: then a block's number is its first unit's."""
        ...

    @property
    def num_held(self) -> int: ...

    @property
    def num_cached(self) -> int: ...

    @property
    def window(self) -> Window | None: ...

    @property
    def keeps_states(self) -> bool:
        """Whether a block is a slot, for the states of one sequence."""
        ...

    def cached_blocks(self) -> Sequence[int]:
        """Free blocks whose content can still be found, the least recently released first."""
        ...

    def has_tokens(self, block: int) -> bool:
        """Whether a slot of a held block holds a token, or will once the step under way is done."""
        ...

    def is_cached(self, block: int) -> bool:
        """Of a free block: whether its content can be found."""
        ...

    def times_found(self, block: int) -> int: ...

    def eviction(self, content: BlockHash) -> Eviction | None:
        """When a content was evicted, if it was here not long ago."""
        ...

    def num_holders(self, block: int) -> int:
        """Sequences that hold it."""
        ...

    def watch(self) -> None:
        """Keep track from now on of blocks that change hands."""
        ...

    def unwatch(self) -> None: ...

    def take_touched(self) -> set[int]:
        """Those that have been taken, shared, given up or forgotten since the last call.

        Beside them only blocks change that block tables show: see ``KVAllocator.table``.
        """
        ...


class PagedView:
    """Of a pool of blocks, or of slots for states."""

    def __init__(self, pool: BlockPool, occupancy: Occupancy | None, window: Window | None) -> None:
        """occupancy: None: blocks are slots for states, each in use as a whole."""
        self._pool = pool
        self._occupancy = occupancy
        self.window = window
        self.keeps_states = occupancy is None
        self.num_blocks = pool.num_blocks
        self.share: PageShare | None = pool.part if isinstance(pool, SharedPool) else None

    @property
    def num_held(self) -> int:
        return self._pool.num_held

    @property
    def num_cached(self) -> int:
        return self._pool.num_cached

    def cached_blocks(self) -> Sequence[int]:
        return self._pool.cached_blocks()

    def has_tokens(self, block: int) -> bool:
        return self._occupancy is None or block in self._occupancy.filled

    def is_cached(self, block: int) -> bool:
        return self._pool.content(block) is not None

    def times_found(self, block: int) -> int:
        return self._pool.times_found[block]

    def eviction(self, content: BlockHash) -> Eviction | None:
        return self._pool.eviction(content)

    def num_holders(self, block: int) -> int:
        return self._pool.ref_counts[block]

    def watch(self) -> None:
        self._pool.touched = set()

    def unwatch(self) -> None:
        self._pool.touched = None

    def take_touched(self) -> set[int]:
        touched, self._pool.touched = self._pool.touched or set(), set()
        return touched
