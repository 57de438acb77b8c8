"""An allocator's pools, for those who look at every block and change none."""

from __future__ import annotations

from typing import Protocol

from quire.memory.allocator import KVAllocator
from quire.memory.contiguous.allocator import ContiguousAllocator
from quire.memory.layered import LayeredAllocator
from quire.memory.no_blocks import NoBlocks
from quire.memory.paged import PagedAllocator
from quire.memory.window import Window


class PoolView(Protocol):
    """The device blocks of one KV group."""

    @property
    def num_blocks(self) -> int: ...

    @property
    def num_held(self) -> int: ...

    @property
    def num_cached(self) -> int: ...

    @property
    def window(self) -> Window | None: ...

    def has_tokens(self, block: int) -> bool:
        """Whether a slot of a held block holds a token, or will once the step under way is done."""
        ...

    def is_cached(self, block: int) -> bool:
        """Of a free block: whether its content can be found."""
        ...

    def times_found(self, block: int) -> int: ...

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


def pool_views(allocator: KVAllocator) -> tuple[PoolView, ...]:
    """One for each KV group."""
    if isinstance(allocator, LayeredAllocator):
        return tuple(map(_PagedView, allocator.kv_groups))
    if isinstance(allocator, PagedAllocator):
        return (_PagedView(allocator),)
    if isinstance(allocator, NoBlocks):
        return ()
    assert isinstance(allocator, ContiguousAllocator), "there are no others"
    return (_RegionView(allocator),)


class _PagedView:
    def __init__(self, allocator: PagedAllocator) -> None:
        self._allocator = allocator
        self._pool = allocator.device
        self.window = allocator.window
        self.num_blocks = self._pool.num_blocks

    @property
    def num_held(self) -> int:
        return self._pool.num_held

    @property
    def num_cached(self) -> int:
        return self._pool.num_cached

    def has_tokens(self, block: int) -> bool:
        return self._allocator.occupancy.filled[block] > 0

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


class _RegionView:
    """Of regions, nothing is shared, cached or found."""

    window = None
    num_cached = 0

    def __init__(self, allocator: ContiguousAllocator) -> None:
        self._allocator = allocator
        self.num_blocks = allocator.device.num_blocks

    @property
    def num_held(self) -> int:
        return self.num_blocks - self._allocator.device.num_free

    def has_tokens(self, block: int) -> bool:
        size = self._allocator.block_size
        return any(
            one.start is not None and one.start <= block < one.start + -(-one.num_tokens // size)
            for one in self._allocator.branches.values()
        )

    def is_cached(self, block: int) -> bool:
        return False

    def times_found(self, block: int) -> int:
        return 0

    def num_holders(self, block: int) -> int:
        return 1

    def watch(self) -> None:
        """Tables show it all."""

    def unwatch(self) -> None:
        """See ``watch``."""

    def take_touched(self) -> set[int]:
        return set()
