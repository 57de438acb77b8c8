"""Latencies of many requests: goals for them, and their distributions in constant memory."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from quire.engine.metrics import RequestMetrics


@dataclass(frozen=True)
class Goals:
    """What a request's latencies must not exceed, in seconds; None: no such goal.

    Goodput (DistServe, OSDI 2024, section 2.1) is the highest rate of requests at which a given
    share of them, 90 % say, meets all goals.
    """

    ttft: float | None = None
    tpot: float | None = None

    def misses_ttft(self, metrics: RequestMetrics) -> bool:
        """A request that gave no token misses every goal for the first one."""
        return self.ttft is not None and (metrics.ttft is None or metrics.ttft > self.ttft)

    def misses_tpot(self, metrics: RequestMetrics) -> bool:
        """A request of one token has no tpot, and meets every goal for it."""
        return self.tpot is not None and metrics.tpot is not None and metrics.tpot > self.tpot


@dataclass(frozen=True)
class Summary:
    """A distribution in five figures. Percentiles are right to RESOLUTION, the others exact."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    maximum: float


RESOLUTION = 0.005
"""Relative error of a Distribution's percentiles."""


class Distribution:
    """Durations in constant memory: counted in bins, each wider by the same factor.

    The sketch of Masson, Rim and Lee (DDSketch, VLDB 2019), with as many bins as it takes.
    """

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.maximum = 0.0
        self._bins: Counter[int] = Counter()
        self._zeros = 0

    def add(self, value: float, times: int = 1) -> None:
        """``times`` durations of ``value`` seconds, which is not negative."""
        self.count += times
        self.total += value * times
        if value > self.maximum:
            self.maximum = value
        if value > 0.0:
            self._bins[math.ceil(math.log(value) / _BIN)] += times
        else:
            self._zeros += times

    def percentile(self, percent: float) -> float:
        """The least value that ``percent`` % of all values do not exceed; 0 if there are none."""
        rank = math.ceil(self.count * percent / 100)
        seen = self._zeros
        if rank <= seen:
            return 0.0
        for index in sorted(self._bins):
            seen += self._bins[index]
            if seen >= rank:
                return min(self.maximum, math.exp(index * _BIN) * (1 - RESOLUTION))
        return self.maximum

    def summary(self) -> Summary:
        mean = self.total / self.count if self.count else 0.0
        p50, p90, p99 = map(self.percentile, (50, 90, 99))
        return Summary(self.count, mean, p50, p90, p99, self.maximum)


_BIN = math.log((1 + RESOLUTION) / (1 - RESOLUTION))
