"""What steps have been measured to take: by rows, by a draft model's passes, with drafts or not."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from itertools import pairwise
from math import inf
from statistics import median

from quire.core.protocol import TO_DRAFT, Step

PASSES = (1, 2, 3, 4, 6, 8, 12, 16)
"""Of a draft model, that are weighed against each other."""

_TRIED = (1, 2, 4, 8, 16)
_KEPT = 9  # of each number: one step that was disturbed is no measure
_ENOUGH = 5
_HOPED = 0.1  # for each pass beyond those that have been measured

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
_EVERY, _SECOND = 4, 2  # of steps without drafts in a row, each fourth is noted, from the second
_COLD, _NEAR = 1, 6  # steps after one without drafts: caches are warm, and what that takes is known


class Measured:
    """Seconds of steps that only decode, and what a draft model's passes add to them."""

    def __init__(self) -> None:
        self.costs = StepCosts()
        self._ahead = StepCosts()  # of steps that were begun while the one before was under way
        self._passes: defaultdict[int, PassCosts] = defaultdict(PassCosts)  # by size of the batch
        self._plain_steps = 0  # in a row
        self._since_plain = 0  # steps

    def settled(self, rows: int) -> bool:
        """Whether it is known what a step of ``rows`` takes without drafts."""
        return self.costs.settled(rows) or self._ahead.settled(rows)

    def plain(self, rows: int) -> float:
        """Seconds of a step of ``rows``, as it is without drafts."""
        return (self._ahead if self._ahead.known else self.costs).seconds(rows)

    def passes(self, rows: int) -> PassCosts:
        """The costs of a draft model's passes in steps of about ``rows``."""
        return self._passes[rows.bit_length()]

    def observe(self, step: Step, seconds: float) -> None:
        """Learn that ``step`` took ``seconds``."""
        if step.num_tokens == len(step.chunks):
            self._plain_steps, self._since_plain = self._plain_steps + 1, 0
            if self._plain_steps % _EVERY != _SECOND and self.settled(len(step.chunks)):
                return  # one of many that are all alike
        else:
            self._plain_steps, self._since_plain = 0, self._since_plain + 1
        rows = passes = 0
        for chunk in step.chunks:
            count = 1 if chunk.readout is None else chunk.readout.rows
            if len(chunk.token_ids) != count:
                return  # it computes a prompt
            rows += count
            if count > 1 and chunk.token_ids[-1] == TO_DRAFT:
                passes = max(passes, count - 1)
        if passes:
            besides = len(step.chunks)
            if _COLD < self._since_plain <= _NEAR and self.settled(besides):
                share = seconds / self.plain(besides) - 1
                self.passes(besides).observe(passes, share)
        elif rows:
            if step.ahead:
                self._ahead.observe(rows, seconds)
            if not step.ahead or not self.costs.known:
                self.costs.observe(rows, seconds)


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
        """Whether steps of about ``rows`` have been measured more than once or twice."""
        return self._measured[_nearest(rows)] >= _SETTLED

    def seconds(self, rows: int) -> float:
        """The seconds of a step of ``rows``."""
        return self.several(rows, 1)[0]

    def several(self, first: int, count: int) -> list[float]:
        """Seconds of ``count`` steps: of ``first`` rows, of one row more, and so on."""
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
        """Learn that a step of ``rows`` took ``seconds``."""
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
        """Set a knot, and its neighbours so that no step takes less than one of fewer rows."""
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
        """Derive knots that are not fresh from those that are."""
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
        """A number of passes that should be measured more often; None: there is none."""
        count, number = min((len(self._seen.get(one, ())), one) for one in _TRIED)
        return number if count < _ENOUGH and number <= self.shares[-1][0] else None

    def share(self, passes: int) -> float:
        """The share of ``passes``."""
        known = self._known
        place = bisect_left(known, (passes, 0.0))
        if place == len(known):
            last, share = known[-1] if known else (0, 0.0)
            return share + (passes - last) * _HOPED
        above, most = known[place]
        below, least = known[place - 1] if place else (0, 0.0)
        return least + (most - least) * (passes - below) / (above - below)

    def observe(self, passes: int, share: float) -> None:
        """Learn that ``passes`` took ``share``."""
        self._seen.setdefault(passes, deque(maxlen=_KEPT)).append(max(0.0, share))
        least, known = inf, []
        for number in sorted(self._seen, reverse=True):
            least = min(least, median(self._seen[number]))  # fewer passes take no more
            known.append((number, least))
        self._known = known[::-1]
        most = 2 * self._known[-1][0]
        self.shares = [(one, self.share(one)) for one in PASSES if one <= most]
