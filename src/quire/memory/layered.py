"""Several pools behind one allocator: layers with different windows keep different tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from quire.memory.allocator import BlockTable, Demand, Fit, Usage, When
from quire.memory.blocks import BlockHash, BlockMove
from quire.memory.paged import PagedAllocator

_GRAVITY = {When.NOW: 0, When.LATER: 1, When.NEVER: 2}


class LayeredAllocator:
    """A *lane* is the layers that share a window; each has a PagedAllocator of its own.

    Every verb is done in all lanes or in none: all of them are asked before any is changed.
    Numbers of blocks are sums over the lanes, but for those of a Fit: they are the lane's that
    has least room.
    """

    def __init__(self, lanes: Sequence[PagedAllocator]) -> None:
        if len({lane.block_size for lane in lanes}) != 1:
            raise ValueError("there must be lanes, with one block size")
        self.lanes = tuple(lanes)
        self.block_size = lanes[0].block_size

    @property
    def num_free_blocks(self) -> int:
        return sum(lane.num_free_blocks for lane in self.lanes)

    def advance(self, now: float) -> None:
        for lane in self.lanes:
            lane.advance(now)

    def fit(self, demand: Demand) -> Fit:
        common = self._common_hits(demand)
        fits = [lane.fit(common) for lane in self.lanes]
        tightest = max(fits, key=lambda fit: (_GRAVITY[fit.when], fit.needed - fit.free))
        # A token would have been saved if no lane had lost it.
        before = [lane.fit(demand) for lane in self.lanes]
        reach = min(fit.cached + fit.evicted for fit in before)
        cached = fits[0].cached
        return tightest._replace(evicted=max(0, reach - cached))

    def admit(self, seq_id: int, demand: Demand) -> int | None:
        common = self._common_hits(demand)
        if any(lane.fit(common).when is not When.NOW for lane in self.lanes):
            return None
        cached = {lane.admit(seq_id, common) for lane in self.lanes}
        assert len(cached) == 1, "all lanes found the same beginning"
        return cached.pop()

    def blocks_to_append(self, wants: Mapping[int, int]) -> int:
        return sum(lane.blocks_to_append(wants) for lane in self.lanes)

    def append(self, wants: Mapping[int, int]) -> list[BlockMove] | None:
        for lane in self.lanes:
            lane.drop(wants)
        if any(lane.blocks_to_append(wants) > lane.num_free_blocks for lane in self.lanes):
            return None
        return self._in_all(lambda lane: lane.append(wants))

    def draft(self, seq_id: int, count: int) -> bool:
        if not all(lane.can_draft(seq_id, count) for lane in self.lanes):
            return False
        return all(lane.draft(seq_id, count) for lane in self.lanes)

    def trim(self, seq_id: int, num_tokens: int) -> None:
        for lane in self.lanes:
            lane.trim(seq_id, num_tokens)

    def fork(self, parent_id: int, child_id: int) -> list[BlockMove]:
        return self._in_all(lambda lane: lane.fork(parent_id, child_id))

    def commit(self, seq_id: int, block_hashes: Sequence[BlockHash], count: int) -> None:
        for lane in self.lanes:
            lane.commit(seq_id, block_hashes, count)

    def settle(self) -> None:
        for lane in self.lanes:
            lane.settle()

    def free(self, seq_id: int, *, spoiled: bool = False) -> float:
        return sum(lane.free(seq_id, spoiled=spoiled) for lane in self.lanes)

    def withdraw(self, block: int, lane: int = 0) -> None:
        self.lanes[lane].withdraw(block)

    def cached_blocks(self, lane: int = 0) -> Sequence[int]:
        return self.lanes[lane].cached_blocks()

    def charge(self, seq_id: int) -> float:
        return sum(lane.charge(seq_id) for lane in self.lanes)

    def swap_out(self, seq_ids: Iterable[int]) -> list[BlockMove] | None:
        ids = list(seq_ids)
        for lane in self.lanes:
            lane.drop(ids)
        if not all(lane.can_swap_out(ids) for lane in self.lanes):
            return None
        return self._in_all(lambda lane: lane.swap_out(ids))

    def swap_in(self, seq_ids: Iterable[int], headroom: int = 0) -> list[BlockMove] | None:
        ids = list(seq_ids)
        if not all(lane.can_swap_in(ids, headroom) for lane in self.lanes):
            return None
        return self._in_all(lambda lane: lane.swap_in(ids, headroom))

    def table(self, seq_id: int) -> BlockTable:
        first, *others = (lane.table(seq_id) for lane in self.lanes)
        return first._replace(further=tuple(others))

    def num_tokens(self, seq_id: int) -> int:
        return self.lanes[0].num_tokens(seq_id)

    def blocks_held(self, seq_ids: Sequence[int]) -> tuple[int, int]:
        held = [lane.blocks_held(seq_ids) for lane in self.lanes]
        return sum(distinct for distinct, _ in held), sum(shared for _, shared in held)

    def usage(self) -> Usage:
        return Usage(*map(sum, zip(*(lane.usage() for lane in self.lanes), strict=True)))

    def _common_hits(self, demand: Demand) -> Demand:
        """The demand with so few hashes that every lane finds all of them.

        A shorter beginning ends in another window, so each lane must be asked again.
        """
        agreed = len(demand.block_hashes)
        while True:
            demand = replace(demand, block_hashes=demand.block_hashes[:agreed])
            agreed = min(lane.hit_blocks(demand) for lane in self.lanes)
            if agreed == len(demand.block_hashes):
                return demand

    def _in_all(self, act: Callable[[PagedAllocator], list[BlockMove] | None]) -> list[BlockMove]:
        """The moves of every lane, each with its lane."""
        moves: list[BlockMove] = []
        for number, lane in enumerate(self.lanes):
            own = act(lane)
            assert own is not None, "every lane has said that there is room"
            moves += (move._replace(lane=number) for move in own)
        return moves
