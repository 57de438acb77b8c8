"""What is told of every block is what block tables say, at each moment of lives."""

from __future__ import annotations

from collections import Counter
from functools import partial

from lives.life import Run
from lives.script import draw

from quire.engine.dashboard import BlockState, BlockTracker
from quire_lab.contiguous.allocator import Reservation
from support.contiguous_lives import life_in_regions, regions
from support.slow import random_runs
from support.watched_runs import Watched

LIVES = random_runs(80)


def test_every_block_is_as_block_tables_say() -> None:
    states: Counter[int] = Counter()
    most: Counter[str] = Counter()
    for number in range(LIVES):
        run = Watched(draw(number))
        run.go()
        states += run.states
        most = most | run.most
    assert set(states) == set(BlockState), "too roomy to test anything"
    assert min(most["shared"], most["found"]) >= 3, "too little is shared"


def test_regions_are_told_like_blocks() -> None:
    states: Counter[int] = Counter()
    for number in range(LIVES // 10):
        run = Watched(life_in_regions(number), partial(regions, Reservation.POW2))
        run.go()
        states += run.states
    assert set(states) == {BlockState.FREE, BlockState.RESERVED, BlockState.USED}


def test_nothing_is_noted_unless_somebody_watches() -> None:
    run = Run(draw(4))
    tracker = BlockTracker(run.scheduler)
    tracker.close()
    run.go()
    assert all(kv_group.device.touched is None for kv_group in run.oracle.kv_groups)
