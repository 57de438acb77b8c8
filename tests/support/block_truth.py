"""Every block as block tables have it, found out by brute force; and frames read back."""

from __future__ import annotations

import struct
from array import array

from quire.core.memory import LayeredAllocator, PagedAllocator, SharedPool, StateAllocator
from quire.core.scheduling import Scheduler
from quire.core.scheduling.sequence import Status
from quire.engine.dashboard import BlockState, Cell, number_of
from quire_lab.contiguous.allocator import ContiguousAllocator


def true_cells(scheduler: Scheduler) -> list[Cell]:
    """Of all KV groups, one after the other."""
    allocator = scheduler.allocator
    kv_groups = allocator.kv_groups if isinstance(allocator, LayeredAllocator) else (allocator,)
    cells: list[Cell] = []
    for number, kv_group in enumerate(kv_groups):
        assert isinstance(kv_group, (PagedAllocator, StateAllocator, ContiguousAllocator))
        own = _true_cells(scheduler, number, kv_group)
        if isinstance(kv_group.device, SharedPool):  # each has the others' places free
            span = kv_group.device.part.span
            wide = [Cell()] * len(own)
            for block, cell in enumerate(own):
                if cell.state:
                    wide[block : block + span] = [cell] * span
            cells = [a if a.state else b for a, b in zip(cells or wide, wide, strict=True)]
            continue
        cells += own
    return cells


def _true_cells(
    scheduler: Scheduler,
    number: int,
    kv_group: PagedAllocator | StateAllocator | ContiguousAllocator,
) -> list[Cell]:
    size = kv_group.block_size
    owners: dict[int, list[int]] = {}
    filled, sinks = set(), set()
    resting = scheduler.sessions.resting()
    for group in [*scheduler.running, *scheduler.waiting, *resting]:
        if group.status is Status.SWAPPED:
            continue
        for seq_id in group.tables():
            table = scheduler.allocator.table(seq_id).kv_groups[number]
            for index, block in enumerate(table.block_ids):
                owners.setdefault(block, []).append(number_of(group))
                sink = index < table.num_sink_blocks
                logical = index if sink else index + table.num_dropped
                if table.keeps_state or logical * size < kv_group.num_tokens(seq_id):
                    filled.add(block)
                if sink:
                    sinks.add(block)
    paged = None if isinstance(kv_group, ContiguousAllocator) else kv_group
    cached = set() if paged is None else {*paged.device.cached_blocks()}
    windowed = isinstance(kv_group, PagedAllocator) and kv_group.window is not None
    cells = []
    pool = kv_group.device
    for block in range(pool.part.num_units if isinstance(pool, SharedPool) else pool.num_blocks):
        found = 0
        if paged is not None and (block in owners or block in cached):
            found = paged.device.times_found[block]
        if block in owners:
            if paged is not None and paged.device.content(block) is not None:
                filled.add(block)  # it is full, whatever its owners use of it
            state = BlockState.WINDOW if windowed else BlockState.USED
            state = BlockState.SINK if block in sinks else state
            state = state if block in filled else BlockState.RESERVED
            cells.append(Cell(state, min(owners[block]), len(owners[block]), found))
        else:
            cells.append(Cell(BlockState.CACHED, found=found) if block in cached else Cell())
    return cells


def true_holders(scheduler: Scheduler, block: int) -> set[tuple[int, int, int, int]]:
    """Of those who hold a block: number, branch, first token, and the token after the last."""
    found, size, first = set(), scheduler.allocator.block_size, 0
    allocator = scheduler.allocator
    kv_groups = allocator.kv_groups if isinstance(allocator, LayeredAllocator) else (allocator,)
    for which, kv_group in enumerate(kv_groups):
        assert isinstance(kv_group, (PagedAllocator, StateAllocator, ContiguousAllocator))
        pool = kv_group.device
        span = pool.part.span if isinstance(pool, SharedPool) else 1
        for group in [*scheduler.running, *scheduler.waiting, *scheduler.sessions.resting()]:
            branches = group.branches if group.status is not Status.SWAPPED else ()
            for number, branch in enumerate(branches):
                if branch.seq_id not in group.tables():
                    continue
                table = allocator.table(branch.seq_id).kv_groups[which]
                places = range(len(table.block_ids) + table.num_dropped)
                left = range(table.num_sink_blocks, table.num_sink_blocks + table.num_dropped)
                there = [place for place in places if place not in left]
                for place, own in zip(there, table.block_ids, strict=True):
                    if first + own <= block < first + own + span:
                        tokens = kv_group.num_tokens(branch.seq_id)
                        end = max(min(tokens, place * size + size), place * size)
                        end = tokens if table.keeps_state else end
                        which_one = number if group.beams is not None else branch.index
                        found.add((number_of(group), which_one, place * size, end))
        if not isinstance(pool, SharedPool):
            first += pool.num_blocks
    return found


class Frame:
    """One frame, as its format says. blocks: the numbers of those in a delta; None: all."""

    def __init__(self, data: bytes) -> None:
        header = struct.unpack_from("<2sBBIIId", data)
        magic, version, kind, self.number, self.step, count, self.time = header
        assert (magic, version) == (b"QB", 1) and kind in (0, 1)
        at = 24

        def column(code: str) -> array[int]:
            nonlocal at
            values = array(code)
            values.frombytes(data[at : at + count * values.itemsize])
            at += count * values.itemsize
            return values

        self.blocks = column("I") if kind else None
        owners, shared, found, states = (column(code) for code in "IHHB")
        assert at == len(data)
        rows = zip(states, owners, shared, found, strict=True)
        self.cells = [Cell(*row) for row in rows]

    def apply(self, cells: list[Cell]) -> list[Cell]:
        """What comes of the blocks before it."""
        if self.blocks is None:
            return self.cells
        cells = list(cells)
        for block, cell in zip(self.blocks, self.cells, strict=True):
            cells[block] = cell
        return cells
