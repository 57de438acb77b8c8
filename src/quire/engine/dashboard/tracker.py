"""Follows every block from one look to the next, without looking at each again."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from quire.core.memory import BlockTable, PoolView
from quire.core.scheduling import Scheduler
from quire.engine.dashboard.block_map import MOST, BlockMap, BlockState
from quire.engine.dashboard.holders import holders

_OWNERS = 2**32

_Key = tuple[int, int]
"""A sequence, and a KV group."""


class _HeldTable(NamedTuple):
    """The blocks of a sequence in one KV group, as they were at the last look."""

    number: int
    table: BlockTable
    filled: int  # how many of them, the first ones, have tokens


class BlockTracker:
    """A ``BlockMap`` that is brought up to date between two steps, in bounded time.

    While there is one, pools note which blocks change hands; block tables are compared with what
    they were. ``close`` it when nobody looks any more.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._pools = scheduler.allocator.views()
        for pool in self._pools:
            pool.watch()
        self._firsts = first_blocks(self._pools)
        self.blocks = BlockMap(self._firsts.pop())
        self.changed: set[int] = set()  # since somebody took them
        self._held: dict[_Key, _HeldTable] = {}  # by sequence and KV group
        self._holder: dict[int, _Key] = {}  # of each held block, or one of several
        self._sharers: dict[int, set[_Key]] = {}  # all of several
        self._due = {  # to be looked at
            first + block
            for first, pool in zip(self._firsts, self._pools, strict=True)
            for block in pool.cached_blocks()
        }

    def close(self) -> None:
        for pool in self._pools:
            pool.unwatch()

    def update(self, most: int) -> bool:
        """Look at ``most`` blocks or so; whether all is as it is now. If not, go on with the next
        call: what has been seen by then may have changed again, and is seen again."""
        for first, pool in zip(self._firsts, self._pools, strict=True):
            touched = pool.take_touched()
            self._due.update(first + block for block in touched)
        return self._compare_tables(most) and self._look(most)

    # -- who holds them ------------------------------------------------------------------------

    def _compare_tables(self, most: int) -> bool:
        allocator, size = self._scheduler.allocator, self._scheduler.allocator.block_size
        begun, present = len(self._due), set()
        gone: list[tuple[_Key, _HeldTable | None, _HeldTable]] = []
        for number, branch in holders(self._scheduler):
            seq_id, tokens = branch.seq_id, -(-allocator.num_tokens(branch.seq_id) // size)
            for kv_group, table in enumerate(allocator.table(seq_id).kv_groups):
                key, held = (seq_id, kv_group), self._held.get((seq_id, kv_group))
                present.add(key)
                now = _HeldTable(number % _OWNERS, table, tokens - table.num_dropped)
                if held is None or not _same(held, now):
                    gone.append((key, held, now))
        for key in [key for key in self._held if key not in present]:
            self._leave(key, self._held.pop(key).table.block_ids)
        for key, held, now in gone:
            if len(self._due) - begun > most:
                return False
            self._exchange(key, held, now)
        return True

    def _exchange(self, key: _Key, held: _HeldTable | None, now: _HeldTable) -> None:
        first, ids = self._firsts[key[1]], now.table.block_ids
        before = () if held is None else held.table.block_ids
        if ids[: len(before)] == before:
            come: Iterable[int] = ids[len(before) :]
        else:
            self._leave(key, set(before).difference(ids))
            come = set(ids).difference(before)
            pairs = zip(before, ids, strict=False)  # some may be there in another place
            self._due.update(
                first + block for pair in pairs if pair[0] != pair[1] for block in pair
            )
        self._held[key] = now
        for block in come:
            self._enter(key, first + block)
        low, high = sorted((max(0 if held is None else held.filled, 0), max(now.filled, 0)))
        if held is not None and held.table.num_dropped != now.table.num_dropped:
            low = 0
        self._due.update(first + block for block in ids[low:high])

    def _enter(self, key: _Key, block: int) -> None:
        self._due.add(block)
        other = self._holder.setdefault(block, key)
        if other != key:
            self._sharers.setdefault(block, {other}).add(key)

    def _leave(self, key: _Key, blocks: Iterable[int]) -> None:
        first = self._firsts[key[1]]
        for own in blocks:
            block = first + own
            self._due.add(block)
            sharers = self._sharers.get(block)
            if sharers is None:
                del self._holder[block]
                continue
            sharers.discard(key)
            self._holder[block] = next(iter(sharers))
            if len(sharers) == 1:
                del self._sharers[block]

    # -- what they are -------------------------------------------------------------------------

    def _look(self, most: int) -> bool:
        due, changed = self._due, self.changed
        for _ in range(min(most, len(due))):
            block = due.pop()
            if self._put(block):
                changed.add(block)
        return not due

    def _put(self, block: int) -> bool:
        """Whether there is something new."""
        kv_group = bisect_right(self._firsts, block) - 1
        pool, own, key = (
            self._pools[kv_group],
            block - self._firsts[kv_group],
            self._holder.get(block),
        )
        found = min(pool.times_found(own), MOST)
        if key is None:
            if pool.is_cached(own):
                return self.blocks.put(block, BlockState.CACHED, found=found)
            return self.blocks.put(block, BlockState.FREE)
        number, table, _ = self._held[key]
        if not pool.has_tokens(own):
            state = BlockState.RESERVED
        elif own in table.block_ids[: table.num_sink_blocks]:
            state = BlockState.SINK
        else:
            state = BlockState.USED if pool.window is None else BlockState.WINDOW
        sharers = self._sharers.get(block)
        if sharers is None:
            return self.blocks.put(block, state, number, 1, found)
        number = min(self._held[one].number for one in sharers)
        return self.blocks.put(block, state, number, min(len(sharers), MOST), found)


def first_blocks(pools: tuple[PoolView, ...]) -> list[int]:
    """The number of each KV group's first block among all; and how many there are."""
    firsts = [0]
    for pool in pools:
        firsts.append(firsts[-1] + pool.num_blocks)
    return firsts


def _same(held: _HeldTable, now: _HeldTable) -> bool:
    return (
        held.filled == now.filled
        and held.table.block_ids is now.table.block_ids
        and held.table.num_dropped == now.table.num_dropped
    )
