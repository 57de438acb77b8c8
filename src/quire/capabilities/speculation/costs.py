"""What a step takes that decodes so many rows, as it has been measured."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

_KNOTS = (
    1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 384, 512,
    768, 1024, 1536, 2048,
)  # fmt: skip
_LAST = len(_KNOTS) - 1
_SLOPE = 0.002  # of a step of no rows, for each: what is hoped for until it has been measured
_STALE = 1024  # steps after which what was measured is no longer known
_RECENT, _RECENT_AT_MOST = 0.15, 0.7  # how much the latest step counts
_AGEING = 0.01  # how much more, for each step since there has been one like it
_LEAST = 1e-7  # seconds; clocks may stand still
_SETTLED = 3  # steps, of which the first may have been a slow one
_SURPRISE = 0.5  # a step that takes longer than was thought by more than that was disturbed
_FILL_EVERY = 16  # steps


class StepCosts:
    """Seconds by rows: a broken line through knots, of which the latest steps count most.

    Contexts grow and machines are shared, so it follows what is measured. Beyond what has been,
    rows are hoped to cost little: so it is found out whether they do, in steps that are at most
    twice as large as any before.
    """

    def __init__(self) -> None:
        self._measured = [0] * len(_KNOTS)  # steps
        self._seconds = [0.0] * len(_KNOTS)
        self._steps = 0
        self._seen = [0] * len(_KNOTS)  # the step in which each was last measured
        self.most = 1  # rows that a step may have, to see what it takes

    @property
    def known(self) -> bool:
        """Whether anything has been measured."""
        return self._steps > 0

    def settled(self, rows: int) -> bool:
        """Whether steps of about so many rows have been measured more than once or twice."""
        return self._measured[_nearest(rows)] >= _SETTLED

    def seconds(self, rows: int) -> float:
        """Of a step of so many rows."""
        return self.several(rows, 1)[0]

    def several(self, first: int, count: int) -> list[float]:
        """Of steps of ``first`` rows, one more, and so on."""
        found: list[float] = []
        rows, end, seconds = first, first + count, self._seconds
        right = min(max(1, bisect_left(_KNOTS, first)), _LAST)
        while rows < end:
            start, knot = seconds[right - 1], _KNOTS[right - 1]
            slope = (seconds[right] - start) / (_KNOTS[right] - knot)
            last = end if right == _LAST else min(end, _KNOTS[right] + 1)
            found += [start + slope * (own - knot) for own in range(rows, last)]
            rows, right = last, right + 1
        return found

    def observe(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        knot, seconds = _nearest(rows), max(seconds, _LEAST)
        if not self._steps:
            self._seconds = [seconds * _like(own) / _like(rows) for own in _KNOTS]
        known, fresh = self._seconds[knot], self._is_fresh(knot)
        found = seconds * known / self.seconds(rows)
        self._steps += 1
        if fresh:
            age = self._steps - self._seen[knot]
            recent = max(_RECENT, age * _AGEING, 1 / (self._measured[knot] + 1))
            found = known + min(_RECENT_AT_MOST, recent) * min(found - known, _SURPRISE * known)
        self._measured[knot] += 1
        self._seen[knot] = self._steps
        self._put(knot, found)
        if not fresh or self._steps % _FILL_EVERY == 0:
            self._fill()

    def _is_fresh(self, knot: int) -> bool:
        """Whether it has been measured, and not too long ago."""
        return self._measured[knot] > 0 and self._steps - self._seen[knot] < _STALE

    def _put(self, knot: int, found: float) -> None:
        """No step takes less than one of fewer rows."""
        seconds = self._seconds
        seconds[knot] = found
        below, above = knot - 1, knot + 1
        while below >= 0 and seconds[below] > found:
            seconds[below] = found
            below -= 1
        while above <= _LAST and seconds[above] < found:
            seconds[above] = found
            above += 1

    def _fill(self) -> None:
        """Knots that are not fresh go by those that are."""
        fresh = [knot for knot in range(len(_KNOTS)) if self._is_fresh(knot)]
        self.most = 2 * _KNOTS[fresh[-1]]
        for knot in range(fresh[0]):
            self._seconds[knot] = self._hoped(knot, fresh[0])
        for left, right in pairwise(fresh):
            start, end = self._seconds[left], self._seconds[right]
            for knot in range(left + 1, right):
                part = (_KNOTS[knot] - _KNOTS[left]) / (_KNOTS[right] - _KNOTS[left])
                self._seconds[knot] = start + part * (end - start)
        for knot in range(fresh[-1] + 1, len(_KNOTS)):
            self._seconds[knot] = self._hoped(knot, fresh[-1])

    def _hoped(self, knot: int, measured: int) -> float:
        return self._seconds[measured] * _like(_KNOTS[knot]) / _like(_KNOTS[measured])


def _like(rows: int) -> float:
    return 1 + _SLOPE * rows


def _nearest(rows: int) -> int:
    right = bisect_left(_KNOTS, rows)
    if right == 0 or right > _LAST:
        return min(right, _LAST)
    return right if 2 * rows >= _KNOTS[right - 1] + _KNOTS[right] else right - 1
