"""Ranks that are told of steps know after each what is in every block, as does who hears events."""

from __future__ import annotations

from collections import Counter

from support.followers import Followed, followed_life

LIVES = 120


def test_every_follower_holds_what_the_engine_holds_after_every_step() -> None:
    """Tables, and keys of every filled slot: by messages of steps, and by events of the cache."""
    happened: Counter[str] = Counter()
    for number in range(LIVES):
        run = Followed(followed_life(number))
        happened += run.go()
        happened += Counter(
            slots=run.num_compared, names=run.num_routed, failures=run.device.num_lost,
            dropped=run.num_dropped, groups=len(run.device.pools) > 1,
        )  # fmt: skip
    rare = ("swap", "recompute", "resume", "failures", "copy", "dropped", "groups")
    assert all(happened[what] for what in (*rare, "slots", "names")), happened
