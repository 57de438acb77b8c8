"""What requests are like, learnt from those that were: how long texts become, how many come."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import deque
from itertools import accumulate

from quire.engine.forecast.outlook import Coming

_LATEST = 256  # texts that are remembered
_FADING = 120.0  # seconds after which an arrival counts for a third
_FADING_SIZE = 0.95  # what the size of a request counts for when another has come
_FEWEST = 4  # arrivals of which nothing is concluded


class TextLengths:
    """Of the latest texts that ended by themselves."""

    def __init__(self) -> None:
        self._latest: deque[int] = deque()
        self._sorted: list[int] = []
        self._sums: list[int] = []  # of each and those that are longer, longest first

    def learn(self, tokens: int) -> None:
        self._latest.append(tokens)
        insort(self._sorted, tokens)
        if len(self._latest) > _LATEST:
            self._sorted.remove(self._latest.popleft())
        self._sums = [0, *accumulate(reversed(self._sorted))]

    def whole(self, written: int) -> float:
        """Tokens that one has in the end of which so many are written: as others that came so far.

        Infinite: there was none.
        """
        longer = len(self._sorted) - bisect_right(self._sorted, written)
        if longer:
            return self._sums[longer] / longer
        return 1.5 * written if self._sorted else math.inf


class ArrivalRate:
    """How many requests come, and what they are."""

    def __init__(self) -> None:
        self._count = self._seconds = 0.0  # fading alike
        self._last: float | None = None
        self._prompt = self._output = 0.0

    def came(self, now: float, prompt: int, output: int) -> None:
        """A request has come, of which so many tokens are to be computed, and to be written."""
        if self._last is None:
            self._prompt, self._output = prompt, output
        else:
            apart = max(0.0, now - self._last)
            fading = math.exp(-apart / _FADING)
            self._count = self._count * fading + 1
            self._seconds = self._seconds * fading + apart
            self._prompt += (prompt - self._prompt) * (1 - _FADING_SIZE)
            self._output += (output - self._output) * (1 - _FADING_SIZE)
        self._last = now

    @property
    def coming(self) -> Coming | None:
        """What is to be expected of the next minutes; None: too few have come."""
        if self._count < _FEWEST or not self._seconds:
            return None
        apart = self._seconds / self._count
        return Coming(apart, max(1, round(self._prompt)), max(1, round(self._output)))
