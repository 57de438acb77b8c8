"""Pages: memory that KV groups share, whose borders move while texts come and go.

Two levels, as in Jenga (Zhang et al., 2025): a page belongs to one KV group at a time, which cuts
it into blocks of its own size, and goes to another once nobody holds a block of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import chain
from math import inf
from typing import NamedTuple

from quire.core.memory.pool import BlockPool, PoolNeed


class PageShare(NamedTuple):
    """What a KV group has of pages that others have, too: ``units`` of memory each.

    span: units of one of its blocks. lost: of its slots, as many as a unit has each, those that
        hold nothing, where a block is no whole number of units.
    unit_bytes: of numbers, where memory is made: at most so many, on any rank.
    """

    pages: int
    units: int
    span: int
    lost: int = 0
    unit_bytes: int = 0

    @property
    def per_page(self) -> int:
        """Its blocks in a page."""
        return self.units // self.span

    @property
    def num_units(self) -> int:
        return self.pages * self.units

    def pages_of(self, num_blocks: int) -> int:
        """Pages that ``num_blocks`` of its blocks take, where nothing else is."""
        return -(-num_blocks // self.per_page)


def blocks_in_each(shares: Sequence[PageShare], pages: int) -> int:
    """How many blocks these pages hold for every KV group at the same time."""
    most = range(1, pages * shares[0].units + 1)
    return bisect_right(most, pages, key=lambda n: sum(one.pages_of(n) for one in shares))


_RANKED = 0.1
"""The part of the memory from which on contents that are ranked go before those of others."""


class SharedPages:
    """Pages of ``units`` each, and who has them.

    A page is *busy* while somebody holds a block of it, *idle* while it has only contents that can
    be found, else *empty*. A KV group that needs a page gets an empty one, or the one that has been
    idle for longest, whose contents are evicted. Those that a pool ranks go by their worth instead:
    first of all, where they take more than a part of the memory, else after the others.

    strict: whether a verb has room only if each KV group takes what is free on its busy pages
        before it takes another page. Else what is found there is kept, as long as others are idle
        for longer.
    """

    def __init__(self, count: int, units: int) -> None:
        self.count = count
        self.units = units
        self.strict = False
        self.num_busy = 0
        self._empty: list[int] = []  # a stack, and below it the pages that nobody has had
        self._untouched = 0  # the first of these
        self._idle: OrderedDict[int, tuple[float, SharedPool]] = OrderedDict()
        # Older ones, passed over since callers keep blocks there: so that nobody looks twice.
        self._kept: OrderedDict[int, tuple[float, SharedPool]] = OrderedDict()
        self._ranked: dict[int, SharedPool] = {}  # idle ones, too, of the pool that ranks

    @property
    def num_free(self) -> int:
        """Idle and empty ones."""
        return self.count - self.num_busy

    @property
    def num_empty(self) -> int:
        return len(self._empty) + self.count - self._untouched

    def claim(self, needs: Sequence[tuple[SharedPool, PoolNeed]]) -> bool:
        """Whether the pools have room for all of this; then they must take it next."""
        bound = sum(need.blocks for _, need in needs)
        self.strict = bound > self.num_free  # else it has room, even if each takes a page
        if self.strict and self.lacks(needs):
            return False
        for page in {block // self.units for _, need in needs for block in need.revived}:
            self._not_idle(page)  # so that no other pool takes it first
        return True

    def lacks(self, needs: Sequence[tuple[SharedPool, PoolNeed]]) -> int:
        """Pages that are missing for all of this; 0: there is room."""
        return max(0, sum(pool.pages_for(need) for pool, need in needs) - self.num_free)

    def to_lose(self, taker: SharedPool, since: float | None) -> tuple[int, SharedPool] | None:
        """An idle page for that pool, and whose it is.

        None: contents of its own go, which have been unused ``since`` then. Else it has none.
        """
        ranked = next(iter(self._ranked.values()), taker)
        if ranked is not taker and ranked.ranks_many:
            return ranked.least_page(), ranked
        idle = self.oldest_idle(kept=False)
        if idle is not None and (since is None or since > idle[1]):
            return idle[0], idle[2]
        if since is not None:
            return None
        if ranked is not taker:
            return ranked.least_page(), ranked
        idle = self.oldest_idle(kept=True)
        return idle and (idle[0], idle[2])

    def oldest_idle(self, *, kept: bool) -> tuple[int, float, SharedPool] | None:
        """Which page that is not ranked, since when, and whose. kept: even one with blocks that
        callers keep.
        """
        while self._idle:
            page, (since, pool) = next(iter(self._idle.items()))
            if not pool.keeps(page):
                return page, since, pool
            self._kept[page] = self._idle.pop(page)
        for page, (since, pool) in self._kept.items() if kept else ():
            return page, since, pool
        return None

    def kept_no_longer(self, pages: Iterable[int]) -> None:
        """Callers do not keep some blocks there any more."""
        for page in pages:
            if page in self._kept and not self._kept[page][1].keeps(page):
                self._idle[page] = self._kept.pop(page)
                self._idle.move_to_end(page, last=False)

    def is_ranked(self, page: int) -> bool:
        """Whether it is idle, and its contents are."""
        return page in self._ranked

    def take_empty(self) -> int:
        if self._empty:
            return self._empty.pop()
        self._untouched += 1
        return self._untouched - 1

    def begin(self, page: int) -> None:
        """Somebody holds a block of it."""
        self._not_idle(page)
        self.num_busy += 1

    def end(self, page: int, pool: SharedPool | None) -> None:
        """Nobody does any more. pool: whose contents it still has; None: it has none."""
        self.num_busy -= 1
        if pool is None:
            self._empty.append(page)
        elif pool.ranking is not None:
            self._ranked[page] = pool
        else:
            self._idle[page] = pool.now, pool

    def leave(self, page: int, *, busy: bool) -> None:
        """It is neither, until ``begin``."""
        self.num_busy -= busy
        self._not_idle(page)

    def blank(self, page: int) -> None:
        """An idle one has lost its last content."""
        self._not_idle(page)
        self._empty.append(page)

    def _not_idle(self, page: int) -> None:
        self._idle.pop(page, None)
        self._kept.pop(page, None)
        self._ranked.pop(page, None)


class OwnPages:
    """The pages of one KV group, and their blank blocks, by how much of each is held.

    Those of the fullest busy page are taken first, so that others come free as a whole.
    """

    def __init__(self, pages: SharedPages, span: int) -> None:
        self.per_page = pages.units // span
        self._span = span
        self.num_busy = 0
        self.num_held = 0
        self.held: dict[int, int] = {}  # blocks that somebody holds, by page
        self._pages = pages
        self._units = pages.units
        self._blank: dict[int, list[int]] = {}  # by page, a stack each
        # Busy pages, and those that have just come, with blank blocks: by how many are held.
        self._offered: list[dict[int, None]] = [{} for _ in range(self.per_page + 1)]
        self._num_offered = 0
        self._fullest = 0  # of them, no page has more held

    def __len__(self) -> int:
        """SharedPages with a block to ``pop``."""
        return self._num_offered

    def blocks(self, page: int) -> range:
        """All of a page's."""
        first = page * self._units
        return range(first, first + self.per_page * self._span, self._span)

    def contents(self, page: int) -> list[int]:
        """Those of an idle page that can be found."""
        blank = set(self._blank[page])
        return [block for block in self.blocks(page) if block not in blank]

    def add(self, page: int) -> None:
        """A page comes, and is taken from next."""
        self.held[page] = 0
        self._blank[page] = [*reversed(self.blocks(page))]
        self._offer(page)

    def remove(self, page: int) -> None:
        del self.held[page], self._blank[page]

    def pop(self) -> int:
        """A blank block, to be held."""
        while not self._offered[self._fullest]:
            self._fullest -= 1
        offered = self._offered[self._fullest]
        page = next(reversed(offered))
        block = self._blank[page].pop()
        if not self._blank[page]:
            del offered[page]
            self._num_offered -= 1
        return block

    def append(self, block: int) -> None:
        """A block is blank, which was cached, or whose last owner leaves it now."""
        page = block // self._units
        blank = self._blank[page]
        blank.append(block)
        if self.held[page]:
            if len(blank) == 1:
                self._offer(page)
        elif len(blank) == self.per_page:
            self.remove(page)
            self._pages.blank(page)
        else:
            self._pages.kept_no_longer([page])

    def hold(self, block: int) -> None:
        """Somebody holds a block that was free."""
        page = block // self._units
        held, self.num_held = self.held[page], self.num_held + 1
        if not held:
            self.num_busy += 1
            self._pages.begin(page)
        self._withdraw(page)
        self.held[page] = held + 1
        if self._blank[page]:
            self._offer(page)

    def let_go(self, block: int, pool: SharedPool) -> None:
        """Nobody holds the block any more."""
        page = block // self._units
        self.num_held -= 1
        self._withdraw(page)
        self.held[page] -= 1
        blank = self._blank[page]
        if self.held[page]:
            if blank:
                self._offer(page)
            return
        self.num_busy -= 1
        is_blank = len(blank) == self.per_page
        if is_blank:
            self.remove(page)
        self._pages.end(page, None if is_blank else pool)

    def recount(self, pool: SharedPool) -> None:
        """Count everything afresh, by who holds what, and what can be found."""
        pages = [*self.held]
        for page in pages:
            self._pages.leave(page, busy=self.held[page] > 0)
        self.num_busy = self.num_held = self._num_offered = 0
        for offered in self._offered:
            offered.clear()
        for page in pages:
            blocks = self.blocks(page)
            held = self.held[page] = sum(pool.ref_counts[block] > 0 for block in blocks)
            free = [block for block in blocks if not pool.ref_counts[block]]
            blank = self._blank[page] = [one for one in free if pool.content(one) is None]
            self.num_held += held
            if held:
                self.num_busy += 1
                if blank:
                    self._offer(page)
            is_blank = len(blank) == self.per_page
            if is_blank:
                self.remove(page)
            self._pages.begin(page)
            if not held:
                self._pages.end(page, None if is_blank else pool)

    def _offer(self, page: int) -> None:
        held = self.held[page]
        self._offered[held][page] = None
        self._num_offered += 1
        self._fullest = max(self._fullest, held)

    def _withdraw(self, page: int) -> None:
        offered = self._offered[self.held[page]]
        if page in offered:
            del offered[page]
            self._num_offered -= 1


class SharedPool(BlockPool):
    """The blocks of one KV group on pages that it shares.

    A block's number is its first unit's, so that numbers are places in memory: no two KV groups
    have the same while both have a block there.
    """

    def __init__(self, pages: SharedPages, span: int, lost: int = 0) -> None:
        self.part = part = PageShare(pages.count, pages.units, span, lost)
        self._own = OwnPages(pages, span)
        super().__init__(pages.count * part.per_page, self._own)
        self._pages = pages

    @property
    def num_free(self) -> int:
        """Blocks that could be taken now, if no other KV group took any."""
        own = self._own
        return own.per_page * (self._pages.num_free + own.num_busy) - own.num_held

    @property
    def num_held(self) -> int:
        return self._own.num_held

    @property
    def ranks_many(self) -> bool:
        """Whether ranked contents take more than their part of the memory."""
        return self.num_cached * self.part.span > self.part.num_units * _RANKED

    @property
    def num_padding_units(self) -> int:
        """On its busy pages, in which no whole block has room."""
        own = self._own
        return own.num_busy * (self._pages.units % self.part.span)

    def pages_for(self, need: PoolNeed) -> int:
        """Pages to take that are not busy, if all that is free on busy ones goes first."""
        own = self._own
        pages = {block // self._pages.units for block in need.revived}
        revived = sum(not own.held[page] for page in pages)
        spare = own.per_page * (own.num_busy + revived) - own.num_held - len(need.revived)
        return revived + -(-max(0, need.takes - spare) // own.per_page)

    def keeps(self, page: int) -> bool:
        """Whether callers have asked to keep a free block of it."""
        free = self.kept.free
        return bool(free) and any(block in free for block in self._own.blocks(page))

    def least_page(self) -> int:
        """The idle page with the ranked content of least worth."""
        idle = (one for one in self._cached if self._pages.is_ranked(one // self._pages.units))
        return self._first(idle) // self._pages.units

    def in_the_way(self, block: int | None = None) -> Iterable[int] | None:
        """Where pages are short, it takes none that it does not leave."""
        pages, own = self._pages, self._own
        if len(own):
            return None
        if pages.strict:
            if own.per_page * own.num_busy > own.num_held:
                return self._on_busy(self._cached)
            stays = block is not None and own.held[block // pages.units] > 1
            if stays or not pages.num_free:
                return ()
        spare = pages.num_empty or (
            not self.ranks_many and pages.oldest_idle(kept=False) is not None
        )
        return None if spare else self._cached

    def lose(self, page: int, taker: int) -> None:
        """An idle page is emptied, for that sequence."""
        self.taker = taker
        for block in self._own.contents(page):
            self._own.append(self._forced(block))
            if self.touched is not None:
                self.touched.add(block)

    def take(self) -> int:
        block = super().take()
        self._own.hold(block)
        return block

    def share(self, block: int) -> None:
        free = not self.ref_counts[block]
        super().share(block)
        if free:
            self._own.hold(block)

    def share_all(self, blocks: Sequence[int], *, found: bool = False) -> list[float]:
        free = [block for block in dict.fromkeys(blocks) if not self.ref_counts[block]]
        charged = super().share_all(blocks, found=found)
        for block in free:
            self._own.hold(block)
        return charged

    def release(self, block: int) -> bool:
        free = super().release(block)
        if free:
            self._own.let_go(block, self)
        return free

    def release_all(
        self, blocks: Iterable[int], entries: Iterable[float], charge: float
    ) -> tuple[float, list[int]]:
        charge, freed = super().release_all(blocks, entries, charge)
        for block in freed:
            self._own.let_go(block, self)
        return charge, freed

    def _make_blank(self) -> int:
        """Of a page that comes, or the block that has been cached for longest."""
        pages, own = self._pages, self._own
        if self._until:
            self._lapse(self.kept.end(self.now))
        cached = chain(self._cached, self.kept.free)
        if pages.strict and own.per_page * own.num_busy > own.num_held:
            return self._forced(self._first(self._on_busy(cached)))
        if not pages.num_empty:
            lost = pages.to_lose(self, self._unused_since())
            if lost is None:
                return self._forced(self._first(cached))
            page, pool = lost
            pool.lose(page, self.taker)
        page = pages.take_empty()
        last = (page + 1) * pages.units - 1
        if last >= len(self.ref_counts):
            self._reach(last, self.part.num_units)
        own.add(page)
        return own.pop()

    def _on_busy(self, blocks: Iterable[int]) -> Iterable[int]:
        held, units = self._own.held, self._pages.units
        return (block for block in blocks if held[block // units])

    def _unused_since(self) -> float | None:
        """Contents of its own, for a page; None: it has none, or may not take their block alone."""
        if self.ranking is not None:
            since = -inf if self.ranks_many else inf
            return since if self._cached else None
        oldest = None if self._pages.strict else next(iter(self._cached), None)
        return None if oldest is None else self._since[oldest]

    def _lapse(self, blocks: Sequence[int]) -> None:
        super()._lapse(blocks)
        self._pages.kept_no_longer({block // self._pages.units for block in blocks})

    def _forced(self, block: int) -> int:
        """A cached block, its content evicted."""
        self.kept.forget(block)
        self._cached.pop(block, None)
        self._evict(block)
        return block

    def _rebuild(self, owners: Sequence[int]) -> None:
        super()._rebuild(owners)
        self._blank = self._own
        self._own.recount(self)
