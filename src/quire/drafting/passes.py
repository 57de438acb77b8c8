"""What a draft model's passes take, by how many there are in a step."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from statistics import median_low

_KEPT = 5  # of each number: one step that was disturbed is no measure


class PassCosts:
    """Seconds by passes. The first one often takes most: what was left is computed with it, and
    further ones may be the model's own, without anybody's looking in between."""

    def __init__(self) -> None:
        self._seen: dict[int, deque[float]] = {}
        self._known: list[tuple[int, float]] = []  # passes, seconds; ascending

    @property
    def known(self) -> bool:
        """Whether anything has been measured."""
        return bool(self._known)

    @property
    def most(self) -> int:
        """Passes that a step may have, to see what they take."""
        return 2 * self._known[-1][0] if self._known else 1

    def seconds(self, passes: int, hoped: float) -> float:
        """Of so many. ``hoped``: of each beyond what has been measured."""
        known = self._known
        place = bisect_left(known, (passes, 0.0))
        if place == len(known):
            last, seconds = known[-1] if known else (0, 0.0)
            return seconds + (passes - last) * hoped
        above, most = known[place]
        below, least = known[place - 1] if place else (0, 0.0)
        return least + (most - least) * (passes - below) / (above - below)

    def observe(self, passes: int, seconds: float) -> None:
        """So many took so long."""
        self._seen.setdefault(passes, deque(maxlen=_KEPT)).append(max(0.0, seconds))
        self._known = sorted((number, median_low(seen)) for number, seen in self._seen.items())
