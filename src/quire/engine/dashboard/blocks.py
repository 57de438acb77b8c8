"""Every block of the pool, followed from one look to the next, and as bytes for who draws them."""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from quire.core.memory import BlockTable
from quire.core.scheduling import Scheduler
from quire.engine.dashboard.holders import first_blocks, holders, span_of

FORMAT = 1
_HEADER = struct.Struct("<2sBBIIId")
_OWNERS = 2**32
MOST = 2**16 - 1
"""Counts above that are told as that."""


class BlockState(IntEnum):
    FREE = 0
    CACHED = 1  # free, but what it holds can be found until it is taken
    RESERVED = 2  # held for tokens that are not computed yet
    USED = 3  # held, with tokens in it
    SINK = 4  # so too: of a sequence's attention sinks, which stay
    WINDOW = 5  # so too, until the window of its sequence has left it behind


class Cell(NamedTuple):
    """One block. Where nobody holds it, ``owner`` and ``shared`` are 0.

    owner: the number of the request or session that holds it, the lowest one of several.
    shared: sequences that hold it. found: how often its content has been found in it.
    """

    state: int = 0
    owner: int = 0
    shared: int = 0
    found: int = 0


class BlockMap:
    """All blocks, those of the KV groups' pools one after the other."""

    def __init__(self, num_blocks: int) -> None:
        self.states = bytearray(num_blocks)
        self.owners = array("I", [0]) * num_blocks
        self.shared = array("H", [0]) * num_blocks
        self.found = array("H", [0]) * num_blocks

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, block: int) -> Cell:
        return Cell(self.states[block], self.owners[block], self.shared[block], self.found[block])

    def put(self, block: int, state: int, owner: int = 0, shared: int = 0, found: int = 0) -> bool:
        """Set a block; whether that changes it."""
        if (
            self.states[block] == state
            and self.owners[block] == owner
            and self.shared[block] == shared
            and self.found[block] == found
        ):
            return False
        self.states[block], self.owners[block] = state, owner
        self.shared[block], self.found[block] = shared, found
        return True


class FrameKind(IntEnum):
    SNAPSHOT = 0
    DELTA = 1


def snapshot(blocks: BlockMap, number: int, step: int, now: float) -> bytes:
    """Header, then a column after the other: owners, shared, found, states.

    Everything is little-endian. The header's 24 bytes: "QB", the format (1 byte), the kind (1),
    the frame's number (4), the step (4), the number of blocks that follow (4), and the time in
    seconds since 1970 (8, a float).
    """
    columns = [_bytes(column) for column in (blocks.owners, blocks.shared, blocks.found)]
    header = _header(FrameKind.SNAPSHOT, number, step, len(blocks), now)
    return b"".join([header, *columns, blocks.states])


def delta(blocks: BlockMap, changed: Iterable[int], number: int, step: int, now: float) -> bytes:
    """The same of some blocks, whose numbers are the first column."""
    which = sorted(changed)
    columns = [
        array("I", which),
        array("I", [blocks.owners[block] for block in which]),
        array("H", [blocks.shared[block] for block in which]),
        array("H", [blocks.found[block] for block in which]),
    ]
    states = bytes([blocks.states[block] for block in which])
    header = _header(FrameKind.DELTA, number, step, len(which), now)
    return b"".join([header, *map(_bytes, columns), states])


def _header(kind: FrameKind, number: int, step: int, count: int, now: float) -> bytes:
    most = 2**32 - 1
    return _HEADER.pack(b"QB", FORMAT, kind, number & most, step & most, count, now)


def _bytes(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()


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
        total = self._firsts.pop()
        self.blocks = BlockMap(total)
        self._spans = Spans(total, max(map(span_of, self._pools), default=1))
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
        due = self._due
        for _ in range(min(most, len(due))):
            self._put(due.pop())
        return not due

    def _put(self, block: int) -> None:
        """Draw a block as it is now."""
        key, last = self._holder.get(block), bisect_right(self._firsts, block) - 1
        own = block - self._firsts[last]
        if key is None:
            for pool in self._pools[self._firsts.index(self._firsts[last]) : last + 1]:
                if pool.is_cached(own):
                    found = min(pool.times_found(own), MOST)
                    return self._draw(block, span_of(pool), Cell(BlockState.CACHED, found=found))
            return self._draw(block, 0, Cell())
        pool, (number, table, _) = self._pools[key[1]], self._held[key]
        found = min(pool.times_found(own), MOST)
        if not pool.has_tokens(own):
            state = BlockState.RESERVED
        elif own in table.block_ids[: table.num_sink_blocks]:
            state = BlockState.SINK
        else:
            state = BlockState.USED if pool.window is None else BlockState.WINDOW
        sharers = self._sharers.get(block)
        if sharers is None:
            return self._draw(block, span_of(pool), Cell(state, number, 1, found))
        number = min(self._held[one].number for one in sharers)
        shared = min(len(sharers), MOST)
        return self._draw(block, span_of(pool), Cell(state, number, shared, found))

    def _draw(self, block: int, span: int, cell: Cell) -> None:
        """Set the numbers that a block takes."""
        blocks, changed = self.blocks, self.changed
        for one in self._spans.replace(block, span):
            if blocks.put(one, BlockState.FREE):
                changed.add(one)
        for one in range(block, block + span):
            if blocks.put(one, *cell):
                changed.add(one)


class Spans:
    """Which numbers each block takes in the map."""

    def __init__(self, total: int, most: int) -> None:
        """most: numbers that a block takes."""
        self._most = most
        self._block_at = array("i", [-1]) * (total if most > 1 else 0)

    def replace(self, block: int, span: int) -> list[int]:
        """A block takes ``span`` numbers now; those that it has left, and nobody has taken."""
        at, end = self._block_at, block + span
        if self._most == 1:
            return [] if span else [block]
        before = [one for one in range(block, min(block + self._most, len(at))) if at[one] == block]
        for one in before:
            at[one] = -1
        for one in range(block, end):
            at[one] = block
        return [one for one in before if one >= end]


def _same(held: _HeldTable, now: _HeldTable) -> bool:
    return (
        held.filled == now.filled
        and held.table.block_ids is now.table.block_ids
        and held.table.num_dropped == now.table.num_dropped
    )
