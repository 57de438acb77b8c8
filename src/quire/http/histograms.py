"""Histograms that take many values at once, or that forget names that are gone.

And latencies by OpenTelemetry's conventions for GenAI servers, which need the latter.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from quire.core.protocol import Request
from quire.engine.tracing import PROVIDER, Standing, Watcher, operation, served

OTHERS = "_unloaded"
"""The name of all that are not there any more, and of others that are called so."""
# The buckets are those that the conventions advise.
_DURATION = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_FIRST = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
_LATER = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_LABELS = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")


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


class GenAIMetrics(Watcher):
    """Counts each request as it ends.

    serves: whether an adapter is still served; what is counted by the names of others is not kept.
    """

    def __init__(
        self, registry: CollectorRegistry, model_name: str, serves: Callable[[str], bool]
    ) -> None:
        self._model_name = model_name

        def is_there(name: str) -> bool:
            return name == model_name or serves(name)

        def histogram(
            name: str, text: str, buckets: Sequence[float], *more: str
        ) -> ForgettingHistogram:
            name, labels = f"gen_ai_server_{name}_seconds", [*_LABELS, *more]
            return ForgettingHistogram(name, text, labels, buckets, registry, _LABELS[-1], is_there)

        told = "From a request's arrival to its end."
        self._duration = histogram("request_duration", told, _DURATION, "error_type")
        told = "From its arrival to its first token."
        self._first = histogram("time_to_first_token", told, _FIRST)
        told = "For each token after the first."
        self._later = histogram("time_per_output_token", told, _LATER)

    def ended(self, request: Request, standing: Standing) -> None:
        metrics = standing.metrics
        labels = operation(request), PROVIDER, served(request, self._model_name)
        self._duration.observe((*labels, standing.error or ""), metrics.e2e_latency)
        if metrics.ttft is not None:
            self._first.observe(labels, metrics.ttft)
        if metrics.tpot is not None:
            self._later.observe(labels, metrics.tpot)
