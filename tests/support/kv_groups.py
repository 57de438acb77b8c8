"""Random windows, and the allocators that keep no more than they need."""

from __future__ import annotations

import random

from quire.core.memory import KVAllocator, LayeredAllocator, PagedAllocator, Window
from support.fake_model import Sight, Windows

WINDOWS = (1, 2, 3, 4, 5, 8, 12, 20, 30, 30, 40, 40, 50, 50, 60)
SINKS = (0, 0, 0, 1, 2, 4, 7)


def random_windows(rng: random.Random) -> Windows:
    """One KV group, or several of which the first has no window."""

    def sight() -> Sight:
        return Sight(rng.choice(WINDOWS), rng.choice(SINKS))

    if rng.random() < 0.5:
        return (sight(),)
    return (Sight(), sight(), sight()) if rng.random() < 0.2 else (Sight(), sight())


def make_kv_groups(
    windows: Windows, seed: int, blocks: int, size: int, host_blocks: int, step_tokens: int
) -> KVAllocator:
    rng = random.Random(seed)
    kv_groups = []
    for window, sinks in windows:
        seen = None if window is None else Window(window, step_tokens, sinks)
        share = 1.0 if window is None else rng.choice([0.3, 0.5, 1.0])
        kv_groups.append(PagedAllocator(max(1, int(blocks * share)), size, host_blocks, seen))
    return kv_groups[0] if len(kv_groups) == 1 else LayeredAllocator(size, kv_groups)
