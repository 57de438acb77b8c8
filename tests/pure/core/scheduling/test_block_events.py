"""What is told of the prefix cache is what can be found in it, at each moment."""

from __future__ import annotations

import os
import random
from collections import Counter

from support.event_runs import Told, ToldPipelined, ToldSessions
from support.fake_model import FULL
from support.kv_groups import make_kv_groups, random_windows
from support.scheduler_runs import make_paged

RUNS = max(8, int(os.environ.get("QUIRE_RANDOM_RUNS", "0")))
EVENTFUL = (61, 66, 68, 70, 162, 184, 186)  # lives with evictions, swaps that fail, gaps in windows


def life(kind: type[Told], seed: int) -> Told:
    """Every other one with windows, and so perhaps with several KV groups."""
    if seed % 4 < 2:
        return kind(seed, make_paged, FULL)
    windows = random_windows(random.Random(seed))
    return kind(seed, lambda *sizes: make_kv_groups(windows, seed, *sizes), windows)


def test_events_say_what_can_be_found() -> None:
    """Forks, beams, drafts, preemption, swaps, failures, aborts and cuts included."""
    happened: Counter[str] = Counter()
    for kind in (Told, ToldPipelined, ToldSessions):
        for seed in (*range(RUNS), *EVENTFUL):
            run = life(kind, seed)
            run.run()
            happened += run.decisions
            happened["failed moves"] += run.failed_moves
            happened["forks and beams"] += any(
                g.request.params.width > 1 for g in run.by_request.values()
            )
            if run.replay is not None:
                happened += run.replay.counts
    rare = ("swap", "recompute", "resume", "failed moves", "BlocksRemoved", "AllBlocksCleared")
    assert all(happened[what] for what in rare), f"too roomy to test anything: {happened}"
