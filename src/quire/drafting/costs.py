"""What a step takes that decodes so many rows, as it has been measured."""

from __future__ import annotations

from bisect import bisect_left

_KNOTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_SLOPE = 0.01  # of a step of no rows, for each: what is hoped for until it has been measured
_STALE = 1024  # steps after which what was measured is no longer known
_RECENT, _RECENT_AT_MOST = 0.15, 0.7  # how much the latest step counts
_AGEING = 0.01  # how much more, for each step since there has been one like it
_LEAST = 1e-7  # seconds; clocks may stand still
_NEAR = 0.1  # knots that weigh less are no part of a step
_SETTLED = 3  # steps, of which the first may have been a slow one
_SURPRISE = 0.5  # a step that takes longer than was thought by more than that was disturbed


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

    @property
    def known(self) -> bool:
        """Whether anything has been measured."""
        return any(self._measured)

    def settled(self, rows: int) -> bool:
        """Whether steps of about so many rows have been measured more than once or twice."""
        left, part = _between(rows)
        return self._measured[left if part < 0.5 else left + 1] >= _SETTLED

    @property
    def most(self) -> int:
        """Rows that a step may have, to see what it takes."""
        return 2 * max((rows for rows, fresh in zip(_KNOTS, self._fresh(), strict=True) if fresh))

    def seconds(self, rows: int) -> float:
        """Of a step of so many rows."""
        left, part = _between(rows)
        return (1 - part) * self._seconds[left] + part * self._seconds[left + 1]

    def observe(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        if not self.known:
            self._seconds = [seconds * _like(knot) / _like(rows) for knot in _KNOTS]
        left, part = _between(rows)
        expected = self.seconds(rows)
        weights = {knot: w for knot, w in ((left, 1 - part), (left + 1, part)) if w > _NEAR}
        fresh = self._fresh()
        new = [knot for knot in weights if not fresh[knot]]
        if new:  # so it is that knot which was not known well
            new = [max(new, key=lambda knot: weights[knot])]
            self._seconds[new[0]] += (seconds - expected) / weights[new[0]]
        else:
            error = min(seconds - expected, _SURPRISE * expected)
            for knot, weight in weights.items():
                age = self._steps - self._seen[knot]
                recent = max(_RECENT, age * _AGEING, 1 / (self._measured[knot] + 1))
                recent = min(_RECENT_AT_MOST, recent)
                self._seconds[knot] += recent * error * weight / ((1 - part) ** 2 + part**2)
        self._steps += 1
        for knot in new or weights:
            self._seen[knot] = self._steps
            self._measured[knot] += 1
        self._fill()

    def _fresh(self) -> list[bool]:
        """Which knots have been measured, and not too long ago."""
        return [
            count > 0 and self._steps - seen < _STALE
            for count, seen in zip(self._measured, self._seen, strict=True)
        ]

    def _fill(self) -> None:
        """Knots that are not fresh go by those that are; none takes less than another before it."""
        fresh = self._fresh()
        measured = [knot for knot, known in enumerate(fresh) if known]
        for knot in range(len(_KNOTS)):
            if not fresh[knot]:
                below = [other for other in measured if other < knot][-1:]
                above = [other for other in measured if other > knot][:1]
                self._seconds[knot] = self._from(knot, below or above, above or below)
        last = _LEAST
        for knot in range(len(_KNOTS)):
            last = self._seconds[knot] = max(last, self._seconds[knot])

    def _from(self, knot: int, below: list[int], above: list[int]) -> float:
        """What a knot is likely to take, by the measured ones next to it."""
        (left,), (right,) = below, above
        rows, start, end = _KNOTS[knot], _KNOTS[left], _KNOTS[right]
        if left == right:
            return self._seconds[left] * _like(rows) / _like(start)
        part = (rows - start) / (end - start)
        return (1 - part) * self._seconds[left] + part * self._seconds[right]


def _like(rows: int) -> float:
    return 1 + _SLOPE * rows


def _between(rows: int) -> tuple[int, float]:
    """The knot before ``rows``, and how far on the way to the next one they are."""
    right = min(max(1, bisect_left(_KNOTS, rows)), len(_KNOTS) - 1)
    left = right - 1
    return left, (rows - _KNOTS[left]) / (_KNOTS[right] - _KNOTS[left])
