"""Steps that are planned while the one before is under way change no text, and leak nothing."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from quire_lab.contiguous.allocator import ContiguousAllocator, Reservation
from support.kv_groups import make_kv_groups, random_windows
from support.pipelined_runs import PipelinedRun
from support.slow import random_runs

RUNS = random_runs(200)


@pytest.mark.slow
def test_text_does_not_depend_on_planning_ahead() -> None:
    decisions: Counter[str] = Counter()
    ahead = dropped = failed_moves = 0
    for seed in range(RUNS):
        run = PipelinedRun(seed)
        run.run()
        decisions += run.decisions
        ahead += run.pipeline.num_ahead
        dropped += run.num_dropped
        failed_moves += run.failed_moves
    rare = {what: decisions[what] for what in ("swap", "recompute", "resume", "wait")}
    assert min(rare.values()) >= 10, f"too roomy to test anything: {rare}"
    assert ahead > 1000
    assert dropped > 20
    assert failed_moves > 0


def test_text_does_not_depend_on_planning_ahead_under_windows() -> None:
    ahead = 0
    for seed in range(100):
        windows = random_windows(random.Random(seed))
        run = PipelinedRun(
            seed,
            lambda *sizes, windows=windows, seed=seed: make_kv_groups(windows, seed, *sizes),
            windows,
        )
        run.run()
        ahead += run.pipeline.num_ahead
    assert ahead > 1000


@pytest.mark.parametrize("reservation", Reservation)
def test_text_does_not_depend_on_planning_ahead_in_regions(reservation: Reservation) -> None:
    ahead = 0
    for seed in range(60):
        run = PipelinedRun(
            seed,
            lambda blocks, size, host, _: ContiguousAllocator(blocks, size, reservation, 90, host),
        )
        run.run()
        ahead += run.pipeline.num_ahead
    assert ahead > 300


def test_a_device_that_takes_steps_out_of_order_is_found_out() -> None:
    """Blocks are freed, and given to others, while a step that writes them is under way."""

    def goes_wrong(seed: int) -> bool:
        try:
            PipelinedRun(seed, late_writes=True).run()
        except AssertionError:
            return True
        return False

    assert sum(goes_wrong(seed) for seed in range(50)) > 5
