"""What is told of every block is what block tables say, at each moment of lives."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
from lives.life import Run
from lives.script import draw

from quire.core.memory import PageShare
from quire.core.protocol import RecoveryCosts, Request
from quire.engine.dashboard import BlockState, BlockTracker, pool_figures
from quire.engine.scheduling import scheduler_of
from quire.text.params import SamplingParams
from quire_lab.contiguous.allocator import Reservation
from support.contiguous_lives import life_in_regions, regions
from support.limits import make_limits
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


@pytest.mark.parametrize(("shared", "longest", "any_text"), [(False, 19, 39), (True, 24, 54)])
def test_regions_for_all_that_runs_are_counted_as_the_pool_is(
    shared: bool, longest: int, any_text: int
) -> None:
    """Two branches of 10 tokens, one of 8: in blocks of 4, of two KV groups and a state each.

    Where the KV groups share pages, a block of the second takes two units.
    """
    limits = make_limits(64, 24, windows=(None, 8), states=int(not shared), block_size=4)
    if shared:
        own = (PageShare(32, 2, span) for span in (1, 2))
        kv_groups = zip(limits.kv_groups, own, strict=True)
        limits = replace(
            limits, kv_groups=tuple(one._replace(share=part) for one, part in kv_groups)
        )
    scheduler = scheduler_of(limits, RecoveryCosts())
    for name, prompt, n in (("a", 7, 2), ("b", 5, 1)):
        scheduler.add(Request(name, tuple(range(prompt)), SamplingParams(n=n), 4, 0))
    scheduler.schedule(0.0)
    found = pool_figures(scheduler, limits.max_model_len, []).contiguous
    assert (found.longest, found.max_model_len) == (longest, any_text)
