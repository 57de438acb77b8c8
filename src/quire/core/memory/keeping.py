"""Free blocks whose callers have asked to keep them: they are evicted after all others."""

from __future__ import annotations

from collections import OrderedDict

_EVERY = 5.0  # seconds
SHARE = 4  # of the pool's blocks, one in this many may be kept: the others are always for all


class KeptBlocks:
    """Which blocks are kept until when, and which of them are free.

    At most one in SHARE of the pool: where there are more, the least recently released one is
    kept no longer. The same holds of one whose time is over.

    until: when each ceases to be kept, held or free. free: in order of release.
    """

    def __init__(self, num_blocks: int) -> None:
        self._most = num_blocks // SHARE
        self.until: dict[int, float] = {}
        self._due = 0.0  # when those whose time is over are looked for again
        self.free: OrderedDict[int, None] = OrderedDict()

    def keep(self, block: int, until: float) -> None:
        """Keep a block that is held, once nobody holds it."""
        self.until[block] = max(until, self.until.get(block, until))

    def release(self, block: int, now: float) -> list[int]:
        """Nobody holds the block, whose content can be found; the blocks that are not kept now."""
        ended = self.end(now)
        if self.until.get(block, now) <= now:
            self.forget(block)
            return [*ended, block]
        self.free[block] = None
        if len(self.free) > self._most:
            ended.append(self.oldest())
        return ended

    def end(self, now: float) -> list[int]:
        """Free blocks whose time is over: they are as all others from now on."""
        if now < self._due:
            return []
        self._due = now + _EVERY
        ended = [block for block in self.free if self.until[block] <= now]
        for block in ended:
            self.forget(block)
        return ended

    def oldest(self) -> int:
        """Take the free one that was released least recently: it is kept no longer."""
        block = next(iter(self.free))
        self.forget(block)
        return block

    def forget(self, block: int) -> bool:
        """Its content goes, or its time is over; whether it was free."""
        self.until.pop(block, None)
        return self.share(block)

    def share(self, block: int) -> bool:
        """Somebody holds it again; whether it was a free one of these."""
        if block not in self.free:
            return False
        del self.free[block]
        return True

    def clear(self) -> list[int]:
        """Keep none; those that were free."""
        free = [*self.free]
        self.until.clear()
        self.free.clear()
        return free
