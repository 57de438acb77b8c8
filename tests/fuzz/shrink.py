"""A smaller case that fails like a larger one, by fewer and plainer choices."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

Choices = list[int]


def shrunk(choices: Sequence[int], fails: Callable[[Choices], bool], seconds: float) -> Choices:
    """``choices`` without all that can be left out, each as low as it can be.

    Where choices are left out, those that follow decide something else, and those that are lacking
    are 0. It looks for so many seconds.
    """
    best, end = list(choices), time.monotonic() + seconds

    def better(tried: Choices) -> bool:
        nonlocal best
        if time.monotonic() > end or tried == best or not fails(tried):
            return False
        best = tried
        return True

    before: Choices = []
    while before != best and time.monotonic() < end:
        before = best
        _leave_out(better, lambda: best)
        _lower(better, lambda: best)
    return best


def _leave_out(better: Callable[[Choices], bool], best: Callable[[], Choices]) -> None:
    """Ever smaller pieces, from the end on: a piece at the end is all that others need not."""
    size = max(1, len(best()) // 2)
    while size:
        at = len(best()) - size
        while at >= 0:
            better(best()[:at] + best()[at + size :])
            at -= size
        size //= 2


def _lower(better: Callable[[Choices], bool], best: Callable[[], Choices]) -> None:
    """Each choice to 0, or to the lowest with which it still fails, found by halving."""
    for at in range(len(best())):
        if at >= len(best()) or not (high := best()[at]):
            continue
        low = -1
        while high - low > 1:
            middle = 0 if low == -1 and high == best()[at] else (low + high) // 2
            if better([*best()[:at], middle, *best()[at + 1 :]]):
                high = middle
            else:
                low = middle
