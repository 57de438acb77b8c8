"""What a draft model's passes take, by how many there are in a step."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from math import inf
from statistics import median

PASSES = (1, 2, 3, 4, 6, 8, 12, 16)
"""Of a draft model, that are weighed against each other."""

_TRIED = (1, 2, 4, 8, 16)
_KEPT = 9  # of each number: one step that was disturbed is no measure
_ENOUGH = 5
_HOPED = 0.1  # for each pass beyond those that have been measured


class PassCosts:
    """What a step takes more with passes and the rows that they lead to, as a share of one without.

    Machines get slower and faster, and such shares stay. The first pass often takes most, and
    further ones next to nothing.
    """

    def __init__(self) -> None:
        self._seen: dict[int, deque[float]] = {}
        self._known: list[tuple[int, float]] = []  # passes, share; ascending
        self.shares: list[tuple[int, float]] = [(1, _HOPED)]
        """Of all numbers of passes that a step may have: at most twice as many as any before."""

    def due(self) -> int | None:
        """A number of passes that has not been measured often enough, though it may be."""
        count, number = min((len(self._seen.get(one, ())), one) for one in _TRIED)
        return number if count < _ENOUGH and number <= self.shares[-1][0] else None

    def share(self, passes: int) -> float:
        """Of so many."""
        known = self._known
        place = bisect_left(known, (passes, 0.0))
        if place == len(known):
            last, share = known[-1] if known else (0, 0.0)
            return share + (passes - last) * _HOPED
        above, most = known[place]
        below, least = known[place - 1] if place else (0, 0.0)
        return least + (most - least) * (passes - below) / (above - below)

    def observe(self, passes: int, share: float) -> None:
        """So many took so much."""
        self._seen.setdefault(passes, deque(maxlen=_KEPT)).append(max(0.0, share))
        least, known = inf, []
        for number in sorted(self._seen, reverse=True):
            least = min(least, median(self._seen[number]))  # fewer passes take no more
            known.append((number, least))
        self._known = known[::-1]
        most = 2 * self._known[-1][0]
        self.shares = [(one, self.share(one)) for one in PASSES if one <= most]
