"""A run of steps that only decode, computed a few at a time.

Their end is known beforehand. So the engine need not run at each of them: it is left alone until a
request comes, its state is read, or the steps are over.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from itertools import islice
from typing import NamedTuple

from quire.core.memory import Usage
from quire.engine.work import Work, seen
from quire_lab.simulation.cost_model import decoding
from quire_lab.simulation.steady_decoding import SteadyDecoding


class UnderWay(NamedTuple):
    """A step that has begun."""

    start: float
    usage: Usage
    running: int
    waiting: int


class SteadyRun:
    """Steps of groups that decode alone. start, end: of the last that is over.

    begin, over: called for each step as it begins, and with its tokens as it ends; gaps of the
        times between its tokens, except for those of a step that ends a text.
    """

    def __init__(
        self,
        steady: SteadyDecoding,
        now: float,
        waiting: int,
        *,
        begin: Callable[[UnderWay], None],
        over: Callable[[float, int], None],
        gaps: Callable[[Mapping[float, int]], None],
    ) -> None:
        self.steady = steady
        self.start = self.end = now
        self._first = steady.num_steps
        self._limit = steady.next_end
        self._waiting = waiting
        self._ends: list[float] = []  # of the steps foreseen
        self._num_over = 0  # of those
        self._is_under_way = False
        self._known: tuple[int, Usage] | None = None  # the pool's slots after so many appends
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

    @property
    def num_steps(self) -> int:
        """Steps that have begun."""
        return self.steady.num_steps - self._first

    @property
    def num_waits(self) -> int:
        """How often they have kept a request waiting."""
        return self.num_steps if self._waiting else 0

    def foresee(self, seconds: Callable[[Work], float], before: float) -> bool:
        """Begin a step, and say when it and some more are over: each ``before`` that time.

        False: there is none.
        """
        steady, count = self.steady, len(self.steady)
        most, sights = min(self._limit - steady.num_steps, steady.num_sure), steady.seen.sights
        time, ends = self.end, list[float]()
        for contexts in islice(steady.seen.ahead(steady.num_steps), most):
            time += seconds(decoding(count, seen(sights, contexts)))
            if time > before:
                break
            ends.append(time)
        if not ends or not steady.can_step or steady.copies:
            return False
        self._ends, self._num_over = ends, 0
        self._plan()
        return True

    def cut(self, now: float) -> None:
        """A request comes: plans from now on wait for it."""
        del self._ends[bisect_left(self._ends, now) + 1 :]

    def catch_up(self, now: float) -> None:
        """End the steps that end until ``now``, and begin those that begin before."""
        ends, steady, count = self._ends, self.steady, len(self.steady)
        while self._num_over < len(ends):
            if not self._is_under_way:
                if self.end >= now:
                    return
                assert steady.can_step, "as many steps are sure"
                self._plan()
            end = ends[self._num_over]
            if end > now:
                return
            self.start, self.end = self.end, end
            self._num_over += 1
            self._is_under_way = False
            self._over(end, count)
            if steady.num_steps < self._limit:
                self._gaps(steady.gaps(self.start, end))

    def _plan(self) -> None:
        steady = self.steady
        moves = steady.step(self.end)
        assert not moves, "nothing is copied"
        self._is_under_way = True
        if self._known is None or self._known[0] != steady.num_appends:
            self._known = steady.num_appends, steady.told()
        usage = steady.usage(self._known[1])
        self._begin(UnderWay(self.end, usage, len(steady), self._waiting))
