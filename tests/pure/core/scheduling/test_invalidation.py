"""What is lost with a block that does not come back, and that nobody finds it."""

from __future__ import annotations

import pytest

from quire.core.memory import (
    BlockMove,
    BlockTable,
    Demand,
    LayeredAllocator,
    MoveKind,
    PagedAllocator,
    Window,
    hash_blocks,
)
from quire.core.protocol import Chunk, Readout, Request, Step, StepResult
from quire.core.scheduling import BatchLimits, Scheduler
from quire.core.scheduling.invalidation import PhysicalBlock, lost_blocks
from quire.text.params import SamplingParams
from support.outcomes import take_in


def chunk(start: int, count: int, blocks: tuple[int, ...], windowed: BlockTable) -> Chunk:
    return Chunk(0, [1] * count, start, BlockTable(blocks, 4, further=(windowed,)), 8, Readout())


def on_device(kv_group: int, *blocks: int) -> set[PhysicalBlock]:
    return {PhysicalBlock(False, kv_group, block) for block in blocks}


def test_all_that_a_step_makes_of_a_lost_block_is_lost() -> None:
    back = BlockMove(MoveKind.SWAP_IN, 3, 20, 1)
    copy = BlockMove(MoveKind.COPY, 20, 21, 1)
    reader = chunk(4, 4, (0, 1), BlockTable((20, 22), 4))  # computes blocks 1 and 22 from block 20
    # Found block 1 in the same step. Its window has left block 20 behind.
    finder = chunk(8, 2, (0, 1, 2), BlockTable((22, 23), 4, num_dropped=1))
    other = chunk(0, 4, (5,), BlockTable((25,), 4))
    step = Step([back, copy], [other, finder, reader])
    expected = on_device(1, 20, 21) | on_device(0, 1) | on_device(1, 22)
    expected |= on_device(0, 2) | on_device(1, 23)
    assert lost_blocks(step, [back], 4) == expected
    assert lost_blocks(step, [], 4) == set()


def test_a_block_that_did_not_go_out_is_lost_on_the_host_alone() -> None:
    out = BlockMove(MoveKind.SWAP_OUT, 20, 3, 1)
    step = Step([out], [chunk(0, 4, (20,), BlockTable((20,), 4))])
    assert lost_blocks(step, [out], 4) == {PhysicalBlock(True, 1, 3)}


def test_a_block_that_did_not_go_out_is_lost_where_it_comes_back_in_the_same_step() -> None:
    out, back = BlockMove(MoveKind.SWAP_OUT, 20, 3, 1), BlockMove(MoveKind.SWAP_IN, 3, 21, 1)
    again = BlockMove(MoveKind.SWAP_OUT, 21, 4, 1)
    reader = chunk(4, 4, (0, 1), BlockTable((21, 22), 4))
    expected = on_device(1, 21, 22) | on_device(0, 1)
    expected |= {PhysicalBlock(True, 1, block) for block in (3, 4)}
    assert lost_blocks(Step([out, back, again], [reader]), [out], 4) == expected


def test_what_a_block_does_not_hold_is_not_found() -> None:
    allocator = PagedAllocator(4, 4)
    demand = Demand(9, [b"first", b"second"])
    assert allocator.admit(1, demand) == 0
    allocator.append({1: 9})
    allocator.commit(1, [b"first", b"second"], 2)
    (first, second, _) = allocator.table(1).block_ids
    allocator.free(1)
    allocator.invalidate(second)
    assert allocator.admit(2, demand) == 4
    assert allocator.table(2).block_ids[0] == first


def test_what_a_request_computed_from_a_lost_block_is_not_found_once_it_has_left() -> None:
    scheduler = Scheduler(PagedAllocator(8, 4), BatchLimits(2, 32))
    prompt = tuple(range(1, 14))
    scheduler.add(Request("left", prompt, SamplingParams(), 1, seed=0))
    step = scheduler.schedule(0.0)
    second = step.chunks[0].table.block_ids[1]
    scheduler.abort("left")
    lost = BlockMove(MoveKind.SWAP_IN, 0, second)
    take_in(scheduler, step, StepResult(failed_moves=[lost]), 1.0)
    group = scheduler.add(Request("next", prompt, SamplingParams(), 1, seed=0))
    scheduler.schedule(2.0)
    assert group.memory.cached_tokens == 0


@pytest.mark.parametrize("windows", [(None,), (8,), (None, 8), (5, 12)])
@pytest.mark.parametrize("budget", [16, 32])
def test_nothing_of_steps_that_failed_is_found(
    windows: tuple[int | None, ...], budget: int
) -> None:
    """Neither what a step planned ahead has left behind of what the one before was to compute."""
    pools = [
        PagedAllocator(64, 4, 0, None if tokens is None else Window(tokens, budget))
        for tokens in windows
    ]
    allocator = pools[0] if len(pools) == 1 else LayeredAllocator(4, pools)
    scheduler = Scheduler(allocator, BatchLimits(4, budget))
    prompt = tuple(range(60))
    scheduler.add(Request("failed", prompt, SamplingParams(), 4, seed=0))
    first = scheduler.schedule(0.0)
    second = scheduler.schedule_ahead(first, 0.0)
    assert second is not None
    for step in (first, second):  # as an engine gives them up
        scheduler.invalidate(step)
    scheduler.abort("failed", invalid=True)
    names = hash_blocks(b"", prompt, 4)
    assert not any(pool.device.find(name) for pool in pools for name in names)
    group = scheduler.add(Request("next", prompt, SamplingParams(), 4, seed=0))
    assert scheduler.schedule(1.0).chunks[0].start == group.memory.cached_tokens == 0
