"""Histograms that are told much at once, or that forget whom nobody asks for any more."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric

OTHERS = "_unloaded"
"""The name of all that are not there any more, and of whoever else is called so."""


class _Counts:
    """Values by bucket."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds  # the largest values of the buckets, but for the last one
        self._counts = [0] * (len(bounds) + 1)
        self._sum, self._created = 0.0, time.time()

    def observe(self, values: Sequence[float]) -> None:
        counts, bounds = self._counts, self._bounds
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        self._sum += sum(values)

    def take_over(self, other: _Counts) -> None:
        """Count what the other has counted."""
        self._counts = [own + more for own, more in zip(self._counts, other._counts, strict=True)]
        self._sum += other._sum
        self._created = min(self._created, other._created)

    def add_to(self, metric: HistogramMetricFamily, labels: Mapping[str, str]) -> None:
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        totals = zip(names, accumulate(self._counts), strict=True)
        metric.add_metric([*labels.values()], [*totals], self._sum)
        metric.add_sample(f"{metric.name}_created", dict(labels), self._created)


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
        self._counts = _Counts(bounds)
        self.observe = self._counts.observe
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        metric = HistogramMetricFamily(self._name, self._text, labels=[*self._labels])
        self._counts.add_to(metric, self._labels)
        yield metric


class ForgettingHistogram:
    """One for each set of labels, as long as who is named by one of them is there.

    What was counted of others is counted under the name OTHERS, so that no sum goes down.

    label: the one by which that goes; is_there: whether the one of that name is.
    """

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        bounds: Sequence[float],
        registry: CollectorRegistry,
        label: str,
        is_there: Callable[[str], bool],
    ) -> None:
        self._name, self._text, self._labels, self._bounds = name, text, labels, bounds
        self._place, self._is_there = [*labels].index(label), is_there
        self._all: dict[tuple[str, ...], _Counts] = {}
        self._lock = threading.Lock()
        registry.register(self)

    def observe(self, labels: tuple[str, ...], value: float) -> None:
        """From any thread."""
        with self._lock:
            if labels not in self._all:
                self._forget()
            self._of(self._known(labels)).observe([value])

    def collect(self) -> Iterator[Metric]:
        metric = HistogramMetricFamily(self._name, self._text, labels=[*self._labels])
        with self._lock:
            self._forget()
            for labels, counts in self._all.items():
                counts.add_to(metric, dict(zip(self._labels, labels, strict=True)))
        yield metric

    def _of(self, labels: tuple[str, ...]) -> _Counts:
        if labels not in self._all:
            self._all[labels] = _Counts(self._bounds)
        return self._all[labels]

    def _known(self, labels: tuple[str, ...]) -> tuple[str, ...]:
        """The labels under which these are counted now."""
        place = self._place
        there = labels[place] == OTHERS or self._is_there(labels[place])
        return labels if there else (*labels[:place], OTHERS, *labels[place + 1 :])

    def _forget(self) -> None:
        for labels in [*self._all]:
            if (known := self._known(labels)) != labels:
                self._of(known).take_over(self._all.pop(labels))
