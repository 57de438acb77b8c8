"""A run of steps that only decode, foreseen a few at a time.

When they end is known beforehand. So an engine need not be asked at each of them: it is left alone
until somebody comes, or wants to know how it is, or the foreseen steps are over.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from quire.memory import Usage
from quire.scheduling.sequence import Sequence as Branch
from quire.simulation.fast_forward import SteadyDecoding
from quire.simulation.live import LiveRequest
from quire.simulation.work import Work, decoding

Row = tuple[LiveRequest, Branch]


class UnderWay(NamedTuple):
    """A step that has begun."""

    start: float
    usage: Usage
    running: int
    waiting: int


class SteadyRun:
    """rows: the members, with their requests. start, end: of the step that has ended last.

    begin, over: told of each step as it begins, and with its tokens as it ends; gaps of the times
    between tokens that it gives, but for those of a step that ends a text.
    """

    def __init__(
        self,
        steady: SteadyDecoding,
        rows: Sequence[Row],
        now: float,
        waiting: int,
        *,
        begin: Callable[[UnderWay], None],
        over: Callable[[float, int], None],
        gaps: Callable[[dict[float, int]], None],
    ) -> None:
        self.steady = steady
        self.rows = rows
        self.left = [live.output_tokens - branch.num_output_tokens for live, branch in rows]
        self.start = self.end = now
        self._limit = min(self.left)
        self._waiting = waiting
        self._context = steady.num_context_tokens
        self._ends: list[float] = []  # of the steps foreseen
        self._num_over = 0  # of those
        self._is_under_way = False
        self._begin, self._over, self._gaps = begin, over, gaps

    @property
    def due(self) -> float:
        """When the steps foreseen are over."""
        return self._ends[-1]

    @property
    def is_last(self) -> bool:
        """Whether texts end with the last of them."""
        ahead = len(self._ends) - self._num_over - self._is_under_way
        return self.steady.num_steps + ahead == self._limit

    def foresee(self, seconds: Callable[[Work], float], before: float) -> bool:
        """Begin a step, and say when it and some more are over: each ``before`` that time.

        False: there is none.
        """
        steady, count = self.steady, len(self.rows)
        most = min(self._limit - steady.num_steps, steady.num_sure)
        if most <= 0:
            return False
        time, context, ends = self.end, self._context, list[float]()
        for _ in range(most):
            time += seconds(decoding(count, context))
            if time > before:
                break
            ends.append(time)
            context += count
        if not ends or not steady.step(self.end):
            return False
        self._ends, self._num_over, self._context = ends, 0, context
        self._has_begun(self.end)
        return True

    def cut(self, now: float) -> None:
        """Somebody comes: what is planned from now on waits for that."""
        keep = bisect_left(self._ends, now) + 1
        if keep < len(self._ends):
            self._context -= (len(self._ends) - keep) * len(self.rows)
            del self._ends[keep:]

    def catch_up(self, now: float) -> None:
        """End the steps that end until ``now``, and begin those that begin before."""
        ends, steady, count = self._ends, self.steady, len(self.rows)
        while self._num_over < len(ends):
            if not self._is_under_way:
                if self.end >= now:
                    return
                able = steady.step(self.end)
                assert able, "as many steps are sure"
                self._has_begun(self.end)
            end = ends[self._num_over]
            if end > now:
                return
            self.start, self.end = self.end, end
            self._num_over += 1
            self._is_under_way = False
            self._over(end, count)
            if steady.num_steps == 1:
                if self._limit > 1:
                    self._gaps(gaps_of(self.rows, end))
            elif steady.num_steps < self._limit:
                self._gaps({end - self.start: count})

    def lose(self, now: float) -> None:
        """The engine dies: what has been told of texts until then is all."""
        self.catch_up(now)
        self.steady.close(frozenset())
        for live, _ in self.rows:
            live.num_output_tokens += self.steady.num_steps - self._is_under_way

    def _has_begun(self, now: float) -> None:
        self._is_under_way = True
        self._begin(UnderWay(now, self.steady.usage(), len(self.rows), self._waiting))


def gaps_of(rows: Iterable[Row], now: float) -> dict[float, int]:
    """Times since the last token of each of these branches, and how often each occurs."""
    return Counter(now - live.last_times[branch.index] for live, branch in rows)
