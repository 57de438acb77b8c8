"""What is told of every block is what block tables say, at each moment of random lives."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from quire.engine.dashboard import BlockState, BlockTracker
from quire_lab.contiguous.allocator import ContiguousAllocator, Reservation
from support.fake_model import FULL
from support.kv_groups import make_kv_groups, random_windows
from support.scheduler_runs import SchedulerRun, make_paged
from support.slow import random_runs
from support.watched_runs import Watched, WatchedPipelined, WatchedSessions

RUNS = max(4, random_runs(240) // 40)
EVENTFUL = (61, 66, 72, 162)  # lives with evictions, swaps that fail, blocks found again
_LONGEST = 90  # tokens of a request


def life(kind: type[Watched], seed: int) -> Watched:
    if seed % 4 < 2:
        return kind(seed, make_paged, FULL)
    windows = random_windows(random.Random(seed))
    return kind(seed, lambda *sizes: make_kv_groups(windows, seed, *sizes), windows)


@pytest.mark.parametrize("kind", [Watched, WatchedPipelined, WatchedSessions])
def test_every_block_is_as_block_tables_say(kind: type[Watched]) -> None:
    states: Counter[int] = Counter()
    most: Counter[str] = Counter()
    for seed in (*range(RUNS), *EVENTFUL):
        run = life(kind, seed)
        run.run()
        states += run.states
        most = most | run.most
    wanted = set(BlockState) - ({BlockState.SINK} if kind is not WatchedSessions else set())
    assert set(states) >= wanted, "too roomy to test anything"
    assert min(most["shared"], most["found"]) >= 3, "too little is shared"


def test_regions_are_told_like_blocks() -> None:
    def make(blocks: int, size: int, host: int, _: int) -> ContiguousAllocator:
        return ContiguousAllocator(blocks, size, Reservation.POW2, _LONGEST, host)

    states: Counter[int] = Counter()
    for seed in range(RUNS):
        run = Watched(seed, make)
        run.run()
        states += run.states
    assert set(states) == {BlockState.FREE, BlockState.RESERVED, BlockState.USED}


def test_nothing_is_noted_unless_somebody_watches() -> None:
    run = SchedulerRun(4)
    tracker = BlockTracker(run.scheduler)
    tracker.close()
    run.run()
    assert all(kv_group.device.touched is None for kv_group in run.kv_groups())
