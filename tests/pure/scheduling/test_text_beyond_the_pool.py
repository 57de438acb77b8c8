"""What is fetched from beyond the pool is what would have been computed, or is computed."""

from __future__ import annotations

import os
import random

import pytest

from support.fake_model import FULL
from support.fake_source import FakeSource
from support.kv_groups import make_kv_groups, random_windows
from support.scheduler_runs import SchedulerRun

RUNS = max(12, int(os.environ.get("QUIRE_RANDOM_RUNS", "0")))
LIVES = 3  # that share a source, one after the other, as an engine and those after it do


@pytest.mark.parametrize("windowed", [False, True])
def test_text_does_not_depend_on_what_is_fetched(windowed: bool) -> None:
    failed = fetched = 0
    for number in range(RUNS):
        source = FakeSource(number, forgets=0.3 if number % 3 else 0.0)
        windows = random_windows(random.Random(number)) if windowed else FULL
        for seed in range(LIVES * number, LIVES * (number + 1)):
            run = SchedulerRun(
                seed,
                lambda *sizes, windows=windows, seed=seed: make_kv_groups(windows, seed, *sizes),
                windows,
                source,
            )
            run.run()
            failed += run.failed_moves
        fetched += source.fetched
    assert fetched > RUNS
    assert failed > 0
