"""Any number of pools behind one allocator: layers that keep different tokens, or none at all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from quire.core.memory.blocks import BlockHash, BlockMove
from quire.core.memory.paged import PagedAllocator
from quire.core.memory.pages import SharedPages, SharedPool
from quire.core.memory.pool import ContentWatcher, PoolNeed
from quire.core.memory.states import StateAllocator
from quire.core.memory.values import BlockTable, Demand, Fit, Unit, Usage, When
from quire.core.memory.views import PoolView

_GRAVITY = {When.NOW: 0, When.LATER: 1, When.NEVER: 2}
_NOTHING = Fit(When.NOW, 0, 0, 0)


GroupAllocator = PagedAllocator | StateAllocator
"""That of one KV group."""


class LayeredAllocator:
    """A *KV group* is the layers that keep the same of a text; each has an allocator of its own.

    Every verb is done in all KV groups or in none: whether it can be is looked up in all of them
    before any is changed. Numbers of blocks are sums over the KV groups; a Fit has those of the one
    that has least room.

    A model without KV groups keeps nothing (an encoder, which reads each text in one step): every
    text has room, and holds no blocks.
    """

    def __init__(
        self,
        block_size: int,
        kv_groups: Sequence[PagedAllocator],
        states: StateAllocator | None = None,
        pages: SharedPages | None = None,
    ) -> None:
        """states: of the layers that keep one; they are the last KV group.
        pages: that all KV groups share; None: each has blocks of its own.
        """
        if any(kv_group.block_size != block_size for kv_group in kv_groups):
            raise ValueError("KV groups must have one block size")
        self._paged = tuple(kv_groups)
        self._states = states
        self.kv_groups: tuple[GroupAllocator, ...] = self._paged
        if states is not None:
            self.kv_groups = (*self._paged, states)
        self._forgetful = tuple(one for one in kv_groups if one.window is not None)
        self.block_size = block_size
        self._pages = pages
        self.unit: Unit = "blocks" if pages is None else "pages"
        pools = [(one, one.device) for one in self.kv_groups]
        self._sharing = [(one, pool) for one, pool in pools if isinstance(pool, SharedPool)]

    @property
    def contents(self) -> LayeredAllocator:
        return self

    @property
    def num_free_blocks(self) -> int:
        if self._pages is not None:
            return self._pages.num_free
        return sum(kv_group.device.num_free for kv_group in self.kv_groups)

    def advance(self, now: float) -> None:
        for kv_group in self.kv_groups:
            kv_group.device.now = now

    def fit(self, demand: Demand) -> Fit:
        common = self._findable(demand)
        fits = [kv_group.fit(common) for kv_group in self.kv_groups] or [_NOTHING]
        tightest = max(fits, key=lambda fit: (_GRAVITY[fit.when], fit.needed - fit.free))
        # A token would have been saved if no KV group had lost it.
        paged = self._paged or self.kv_groups
        before = fits[: len(paged)] or fits
        if common is not demand:
            before = [kv_group.fit(demand) for kv_group in paged] or [_NOTHING]
        reach = min(fit.cached + fit.evicted for fit in before)
        there = cached = fits[0].cached
        if self._states is not None and self._paged:
            there = paged[0].fit(self._common_hits(demand, paged)).cached
        stateless = max(0, there // self.block_size * self.block_size - cached)
        if self._pages is not None:
            tightest = self._fit_on_pages(self._pages, common)._replace(cached=cached)
        return tightest._replace(evicted=max(0, reach - there), stateless=stateless)

    def _fit_on_pages(self, pages: SharedPages, demand: Demand) -> Fit:
        """In pages."""
        needed = self._needed(lambda kv_group: kv_group.need(demand))
        when = When.NOW if needed <= pages.num_free else When.LATER
        if when is When.LATER:
            alone = replace(demand, block_hashes=(), headroom=0)
            takes = [group.need(alone).takes for group in self._paged]
            if self._states is not None:  # beside whom others may owe each other some
                takes.append(1 + len(demand.forks))
            each = zip(self._sharing, takes, strict=True)
            least = sum(pool.part.pages_of(count) for (_, pool), count in each)
            when = When.NEVER if least > pages.count else when
        return Fit(when, needed, pages.num_free, pages.count)

    def admit(self, seq_id: int, demand: Demand) -> int | None:
        common = self._findable(demand)
        if self._states is not None and demand.block_hashes:
            known = 0
            if self._paged:
                known = self._paged[0].hit_blocks(self._common_hits(demand, self._paged))
            begins = demand.block_hashes[0]
            common = replace(common, known=known * self.block_size, begins=begins)
        if any(kv_group.fit(common).when is not When.NOW for kv_group in self.kv_groups):
            return None
        if not self._have_room(lambda kv_group: kv_group.need(common)):
            return None
        cached = {kv_group.admit(seq_id, common) for kv_group in self.kv_groups} or {0}
        assert len(cached) == 1, "all KV groups found the same beginning"
        return cached.pop()

    def take_fetches(self) -> list[BlockMove]:
        return self._in_all(lambda kv_group: kv_group.take_fetches())

    def locate(self, content: BlockHash) -> Sequence[int] | None:
        found = [kv_group.device.find(content) for kv_group in self._paged]
        blocks = [block for block in found if block is not None]
        return blocks if blocks and len(blocks) == len(found) else None

    def locate_state(self, content: BlockHash) -> tuple[int, int] | None:
        slot = None if self._states is None else self._states.device.find(content)
        return None if slot is None else (len(self._paged), slot)

    def blocks_to_append(self, new_tokens: Mapping[int, int]) -> int:
        return self._needed(lambda kv_group: PoolNeed(kv_group.blocks_to_append(new_tokens)))

    def append(
        self, new_tokens: Mapping[int, int], group: Collection[int] = ()
    ) -> list[BlockMove] | None:
        for kv_group in self._forgetful:
            kv_group.drop(group or new_tokens)
        if not self._have_room(lambda kv_group: PoolNeed(kv_group.blocks_to_append(new_tokens))):
            return None
        return self._in_all(lambda kv_group: kv_group.append(new_tokens))

    def draft(self, seq_id: int, count: int) -> bool:
        more = {seq_id: count}
        if not self._have_room(lambda kv_group: PoolNeed(kv_group.blocks_to_append(more))):
            return False
        # A state, which may have no room for what comes in for so many, says so before the others.
        return all(kv_group.draft(seq_id, count) for kv_group in reversed(self.kv_groups))

    def trim(self, seq_id: int, num_tokens: int) -> None:
        for kv_group in self.kv_groups:
            kv_group.trim(seq_id, num_tokens)

    def fork(self, parent_id: int, child_id: int) -> list[BlockMove]:
        return self._in_all(lambda kv_group: kv_group.fork(parent_id, child_id))

    def commit(self, seq_id: int, block_hashes: Sequence[BlockHash], count: int) -> None:
        for kv_group in self.kv_groups:
            kv_group.commit(seq_id, block_hashes, count)

    def leave(
        self, seq_id: int, block_hashes: Sequence[BlockHash], count: int, *, idle: bool = False
    ) -> int | None:
        states = self._states
        return None if states is None else states.leave(seq_id, block_hashes, count, idle=idle)

    def settle(self) -> None:
        for kv_group in self.kv_groups:
            kv_group.settle()

    def keep(self, seq_id: int, num_tokens: int, seconds: float) -> None:
        # Which snapshots stay is decided by what they save.
        for kv_group in self._paged:
            kv_group.keep(seq_id, num_tokens, seconds)

    def free(self, seq_id: int, *, invalid: bool = False) -> float:
        return sum(kv_group.free(seq_id, invalid=invalid) for kv_group in self.kv_groups)

    def invalidate(self, block: int, kv_group: int = 0) -> None:
        self.kv_groups[kv_group].device.invalidate(block)

    def watch(self, watcher: ContentWatcher) -> None:
        for number, kv_group in enumerate(self.kv_groups):
            kv_group.device.watch(watcher, number)

    def clear_contents(self) -> None:
        for kv_group in self.kv_groups:
            kv_group.device.clear()
            kv_group.host.clear()

    def charge(self, seq_id: int) -> float:
        return sum(kv_group.charge(seq_id) for kv_group in self.kv_groups)

    def swap_out(self, seq_ids: Iterable[int]) -> list[BlockMove] | None:
        ids = list(seq_ids)
        for kv_group in self._forgetful:
            kv_group.drop(ids)
        if not all(kv_group.can_swap_out(ids) for kv_group in self.kv_groups):
            return None
        return self._in_all(lambda kv_group: kv_group.swap_out(ids))

    def blocks_to_swap_in(self, seq_ids: Iterable[int], headroom: int = 0) -> int:
        ids = list(seq_ids)
        return self._needed(lambda kv_group: kv_group.need_to_swap_in(ids, headroom))

    def swap_in(self, seq_ids: Iterable[int], headroom: int = 0) -> list[BlockMove] | None:
        ids = list(seq_ids)
        if not self._have_room(lambda kv_group: kv_group.need_to_swap_in(ids, headroom)):
            if self._pages is None or self._pages.num_busy:
                return None
            for _, pool in self._sharing:
                pool.clear()  # contents that lie scattered are in the way of their own text
            if not self._have_room(lambda kv_group: kv_group.need_to_swap_in(ids, headroom)):
                return None
        return self._in_all(lambda kv_group: kv_group.swap_in(ids, headroom))

    def table(self, seq_id: int) -> BlockTable:
        if not self.kv_groups:
            return BlockTable((), self.block_size)
        first, *others = (kv_group.table(seq_id) for kv_group in self.kv_groups)
        return first._replace(further=tuple(others))

    def num_tokens(self, seq_id: int) -> int:
        return self.kv_groups[0].num_tokens(seq_id) if self.kv_groups else 0

    def blocks_held(self, seq_ids: Sequence[int]) -> tuple[int, int]:
        held = [kv_group.blocks_held(seq_ids) for kv_group in self.kv_groups]
        return sum(distinct for distinct, _ in held), sum(shared for _, shared in held)

    def usage(self) -> Usage:
        if self._pages is not None:
            return self._usage_of_pages(self._pages)
        each = [kv_group.usage() for kv_group in self.kv_groups]
        return Usage(*map(sum, zip(Usage(), *each, strict=True)))

    def views(self) -> tuple[PoolView, ...]:
        return tuple(view for kv_group in self.kv_groups for view in kv_group.views())

    def audit(self, known: Collection[int]) -> list[str]:
        return [fault for kv_group in self.kv_groups for fault in kv_group.audit(known)]

    def _usage_of_pages(self, pages: SharedPages) -> Usage:
        """In slots of a unit, of which a block has ``span`` times as many."""
        used = reserved = internal = external = cached = 0
        for kv_group, pool in self._sharing:
            own, span = kv_group.usage(), pool.part.span
            lost = pool.num_held * pool.part.lost
            used += own.used * span - lost
            reserved += own.reserved * span
            internal += own.internal * span
            external += pool.num_padding_units * self.block_size + lost
            cached += own.cached * span
        free = pages.count * pages.units * self.block_size
        free -= used + reserved + internal + external + cached
        return Usage(used, reserved, internal, external, cached, free)

    def _needed(self, need: Callable[[GroupAllocator], PoolNeed]) -> int:
        """What all of that takes of what is free, in ``unit``."""
        if self._pages is None:
            return sum(need(one).blocks for one in self.kv_groups)
        return sum(pool.pages_for(need(one)) for one, pool in self._sharing)

    def _have_room(self, need: Callable[[GroupAllocator], PoolNeed]) -> bool:
        """Whether all KV groups have room at once for what each of them takes next."""
        if self._pages is None:
            return all(need(one).blocks <= one.device.num_free for one in self.kv_groups)
        return self._pages.claim([(pool, need(kv_group)) for kv_group, pool in self._sharing])

    def _findable(self, demand: Demand) -> Demand:
        """The demand with what all KV groups find of it."""
        common, pages = self._common_hits(demand, self.kv_groups), self._pages
        if pages is None or pages.num_busy or not common.block_hashes:
            return common
        # Contents that lie scattered over pages must not be in the way of their own text.
        needs = [(pool, kv_group.need(common)) for kv_group, pool in self._sharing]
        return replace(common, block_hashes=()) if pages.lacks(needs) else common

    def _common_hits(self, demand: Demand, kv_groups: Sequence[GroupAllocator]) -> Demand:
        """The demand with so few hashes that all of these find all of them.

        A shorter beginning ends in another window, so each KV group must look again.
        """
        while demand.block_hashes:
            agreed = min((group.hit_blocks(demand) for group in kv_groups), default=0)
            if agreed == len(demand.block_hashes):
                break
            demand = replace(demand, block_hashes=demand.block_hashes[:agreed])
        return demand

    def _in_all(self, act: Callable[[GroupAllocator], list[BlockMove] | None]) -> list[BlockMove]:
        """The moves of every KV group, each with its KV group."""
        moves: list[BlockMove] = []
        for number, kv_group in enumerate(self.kv_groups):
            own = act(kv_group)
            assert own is not None, "every KV group has said that there is room"
            if own:
                moves += (move._replace(kv_group=number) for move in own)
        return moves
