"""What is told of every block is what block tables say, at each moment of random lives."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from quire.dashboard import BlockState, BlockTracker, Cell, delta, snapshot
from quire.memory import ContiguousAllocator, Reservation
from quire.scheduling import Scheduler
from support.block_truth import Frame, true_cells
from support.fake_model import FULL
from support.kv_groups import make_kv_groups, random_windows
from support.pipelined_runs import PipelinedRun
from support.scheduler_runs import SchedulerRun, make_paged
from support.session_runs import SessionRun
from support.slow import random_runs

RUNS = max(4, random_runs(240) // 40)
EVENTFUL = (61, 66, 162)  # lives with evictions, swaps that fail
_LONGEST = 90  # tokens of a request


class Watched(SchedulerRun):
    """Somebody watches, now and then looking away; mixed into other kinds of lives."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.tracker: BlockTracker | None = None
        self.cells: list[Cell] = []
        self.number = 0
        self.states: Counter[int] = Counter()
        self.most: Counter[str] = Counter()

    def check(self) -> None:
        super().check()
        rng = random.Random(self.number)
        self.number += 1
        if self.tracker is None:
            self.tracker = BlockTracker(self.scheduler)
        elif rng.random() < 0.02:
            self.tracker.close()
            self.tracker = BlockTracker(self.scheduler)
            self.cells = []
        if rng.random() < 0.01 and type(self.scheduler) is Scheduler:
            self.allocator.clear_contents()
        if rng.random() < 0.4:
            return  # nobody looks at every step
        if not self.tracker.update(rng.choice([3, 10_000])):
            return  # there was more than may be looked at between two steps
        self.look(self.tracker)

    def look(self, tracker: BlockTracker) -> None:
        truth = true_cells(self.scheduler)
        assert [tracker.blocks[block] for block in range(len(truth))] == truth
        whole = Frame(snapshot(tracker.blocks, self.number, 7, 1.5))
        assert (whole.cells, whole.number, whole.step, whole.time) == (truth, self.number, 7, 1.5)
        if not self.cells:
            self.cells = whole.cells
        else:
            changed = Frame(delta(tracker.blocks, tracker.changed, self.number, 7, 1.5))
            self.cells = changed.apply(self.cells)
        tracker.changed = set()
        assert self.cells == truth
        self.states.update(cell.state for cell in truth)
        for cell in truth:
            self.most["shared"] = max(self.most["shared"], cell.shared)
            self.most["found"] = max(self.most["found"], cell.found)


class WatchedPipelined(Watched, PipelinedRun):
    pass


class WatchedSessions(Watched, SessionRun):
    pass


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
