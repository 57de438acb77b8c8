"""A histogram that is told a whole step at once, in the engine's thread."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric


class StepHistogram:
    """As prometheus_client's, which for each value takes two locks and looks at bucket by bucket.

    One thread tells it of values; another that collects meanwhile may see some of a step's.
    """

    def __init__(
        self,
        name: str,
        text: str,
        labels: Mapping[str, str],
        bounds: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._bounds = bounds  # the largest values of the buckets, but for the last one
        self._counts = [0] * (len(bounds) + 1)
        self._sum, self._created = 0.0, time.time()
        registry.register(self)

    def observe(self, values: Sequence[float]) -> None:
        counts, bounds = self._counts, self._bounds
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        self._sum += sum(values)

    def collect(self) -> Iterator[Metric]:
        metric = HistogramMetricFamily(self._name, self._text, labels=[*self._labels])
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        totals = zip(names, accumulate(self._counts), strict=True)
        metric.add_metric([*self._labels.values()], [*totals], self._sum)
        metric.add_sample(f"{self._name}_created", dict(self._labels), self._created)
        yield metric
