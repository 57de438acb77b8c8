"""Ranks that are told of steps know after each what is in every block, as does who hears events."""

from __future__ import annotations

import random
from collections import Counter

from support.followers import Followed
from support.kv_groups import make_kv_groups, random_windows

SEEDS = (30, 61, 130, 213, 229, 285, 304)  # short of memory, and of windows


def life(seed: int) -> Followed:
    if seed % 4 < 2:
        return Followed(seed)
    windows = random_windows(random.Random(seed))
    return Followed(seed, lambda *sizes: make_kv_groups(windows, seed, *sizes), windows)


def test_every_follower_holds_what_the_engine_holds_after_every_step() -> None:
    """Tables, and keys of every filled slot: by messages of steps, and by events of the cache."""
    happened: Counter[str] = Counter()
    for seed in SEEDS:
        run = life(seed)
        run.run()
        happened += run.decisions
        happened += Counter(
            slots=run.num_compared, names=run.num_routed, failures=run.failed_moves,
            copies=run.num_copied, dropped=run.num_dropped, groups=len(run.windows) > 1,
        )  # fmt: skip
    rare = ("swap", "recompute", "resume", "failures", "copies", "dropped", "groups")
    assert all(happened[what] for what in (*rare, "slots", "names")), happened
