"""A buddy system over blocks: contiguous regions of power-of-two sizes, split and merged in halves.

The allocator of the PagedAttention paper's baselines (Kwon et al., SOSP 2023, section 6.1); the
method is Knowlton's (CACM 1965). Sizes are given by their *order*: 2**order blocks.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable


class BuddyRegions:
    """``num_blocks`` blocks, any number of them, given out as regions aligned to their size.

    The buddy of a region is the other half of the region of twice its size. Two buddies that are
    both free become one free region at once, so which regions are free depends only on which are
    held, and giving back what was just taken restores everything.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_free = num_blocks  # blocks
        self._free: list[list[int]] = []  # by order: first blocks of the free regions, ascending
        self._held: dict[int, int] = {}  # first block of a region given out -> its order
        for order in range(num_blocks.bit_length()):
            # One region for each binary digit of num_blocks, the largest first.
            whole = num_blocks >> order
            self._free.append([(whole - 1) << order] if whole & 1 else [])

    def num_available(self, order: int) -> int:
        """Regions of this order that could be taken one after the other."""
        return sum(len(free) << (k - order) for k, free in enumerate(self._free) if k >= order)

    def num_scattered(self, order: int) -> int:
        """Free blocks in pieces too small for a region of this order."""
        return sum(len(free) << k for k, free in enumerate(self._free) if k < order)

    def take(self, order: int) -> int | None:
        """The first block of a region of 2**order blocks; None: there is no such region.

        Taken from the smallest free region that is large enough, the first in memory among equals.
        So whether several regions fit does not depend on the order in which they are taken.
        """
        for free in self._free[order:]:
            if free:
                start = free[0]
                self.claim(start, order)
                return start
        return None

    def claim(self, start: int, order: int) -> None:
        """Take the very region that begins at ``start``. The caller knows that it is free."""
        whole = order
        while not self._take_out(start >> whole << whole, whole):
            whole += 1
        for half in range(order, whole):
            insort(self._free[half], ((start >> half) ^ 1) << half)
        self._held[start] = order
        self.num_free -= 1 << order

    def release(self, start: int) -> None:
        """Give back the region that begins at ``start``."""
        order = self._held.pop(start)
        self.num_free += 1 << order
        while self._take_out(start ^ (1 << order), order):
            start &= ~(1 << order)
            order += 1
        insort(self._free[order], start)

    def exchange(self, steps: Iterable[tuple[int | None, int | None]]) -> list[int] | None:
        """For each (start, order): give back the region at ``start``, then take one of ``order``.

        Either may be None: nothing to give back, nothing to take. The first blocks of the taken
        regions; or None, without any change, if one of them does not fit.
        """
        released: list[tuple[int, int]] = []
        taken: list[int] = []
        for start, order in steps:
            if start is not None:
                released.append((start, self._held[start]))
                self.release(start)
            if order is not None:
                region = self.take(order)
                if region is None:
                    for region in taken:  # all first: they may overlap old regions
                        self.release(region)
                    for old, old_order in released:
                        self.claim(old, old_order)
                    return None
                taken.append(region)
        return taken

    def _take_out(self, start: int, order: int) -> bool:
        """Strike a region off the free ones; False if it is not one of them."""
        free = self._free[order]
        place = bisect_left(free, start)
        if place == len(free) or free[place] != start:
            return False
        del free[place]
        return True


def next_power_of_two(number: int) -> int:
    """The least power of two that is at least ``number``, and at least 1."""
    return 1 << max(0, number - 1).bit_length()
