"""Regions as a PoolView, which shows every block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quire.core.memory.blocks import BlockHash
from quire_lab.contiguous.buddy import BuddyRegions
from quire_lab.contiguous.family import Branch


class RegionView:
    """A view of regions, in which nothing is shared, cached or found."""

    window = None
    keeps_states = False
    num_cached = 0
    share = None

    def __init__(
        self, regions: BuddyRegions, branches: Mapping[int, Branch], block_size: int
    ) -> None:
        self._regions = regions
        self._branches = branches
        self._block_size = block_size
        self.num_blocks = regions.num_blocks

    @property
    def num_held(self) -> int:
        return self.num_blocks - self._regions.num_free

    def cached_blocks(self) -> Sequence[int]:
        return ()

    def has_tokens(self, block: int) -> bool:
        size = self._block_size
        return any(
            one.start is not None and one.start <= block < one.start + -(-one.num_tokens // size)
            for one in self._branches.values()
        )

    def is_cached(self, block: int) -> bool:
        return False

    def times_found(self, block: int) -> int:
        return 0

    def eviction(self, content: BlockHash) -> None:
        """Nothing is found again, so nothing is evicted."""

    def num_holders(self, block: int) -> int:
        return 1

    def watch(self) -> None:
        """Tables show it all."""

    def unwatch(self) -> None:
        """See ``watch``."""

    def take_touched(self) -> set[int]:
        return set()
