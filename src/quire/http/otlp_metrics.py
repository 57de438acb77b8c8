"""The metrics of /metrics, sent to a collector of OpenTelemetry's every now and then (OTLP)."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from quire.engine.events import Watcher
from quire.engine.tracing import Collector, resource

logger = logging.getLogger(__name__)

_EVERY = 60.0  # seconds, unless OTEL_METRIC_EXPORT_INTERVAL says otherwise
_LINGER = 2.0  # seconds for the last time
_UNITS = (("_seconds", "s"), ("_bytes", "By"))
_CONVENTIONS = {  # Prometheus cannot write their names, nor those of their attributes
    "gen_ai_server_request_duration_seconds": "gen_ai.server.request.duration",
    "gen_ai_server_time_to_first_token_seconds": "gen_ai.server.time_to_first_token",
    "gen_ai_server_time_per_output_token_seconds": "gen_ai.server.time_per_output_token",
    "gen_ai_operation_name": "gen_ai.operation.name",
    "gen_ai_provider_name": "gen_ai.provider.name",
    "gen_ai_request_model": "gen_ai.request.model",
    "error_type": "error.type",
}


class MetricsSender(Watcher):
    """Reads metrics in a thread of its own, as often as is usual, and once more at the end.

    It hears of no event but the end. What a collector does not take is sent with the next ones,
    since all sums are since the start.

    read: what there is, by the names of /metrics.
    """

    def __init__(
        self, collector: Collector, read: Callable[[], Iterable[Metric]], version: str
    ) -> None:
        self._collector, self._read = collector, read
        self._making = _OtlpMetrics(version)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="quire-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send what there is, if that can be done soon."""
        self._over.set()
        self._thread.join(_LINGER)

    def _run(self) -> None:
        seconds = _interval()
        while not self._over.wait(seconds):
            self._send()
        self._send()
        self._collector.close()

    def _send(self) -> None:
        try:
            data = self._making.data(self._read())
        except Exception:  # whatever it is: requests are served without
            logger.exception("metrics cannot be read")
        else:
            self._collector.takes(data)


def _interval() -> float:
    """Seconds between two messages."""
    given = os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", "")
    try:
        milliseconds = float(given or _EVERY * 1000)
    except ValueError:
        milliseconds = 0.0
    if not 0 < milliseconds < float("inf"):
        logger.warning("OTEL_METRIC_EXPORT_INTERVAL is not a number of milliseconds: %.40s", given)
        return _EVERY
    return milliseconds / 1000


class _OtlpMetrics:
    """OpenTelemetry's metrics of Prometheus's, sums since the start."""

    def __init__(self, version: str) -> None:
        from opentelemetry.sdk.metrics import export
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        self._types, self._resource = export, resource()
        self._scope = InstrumentationScope("quire", version)
        self._start = time.time_ns()

    def data(self, metrics: Iterable[Metric]) -> Any:
        made = [self._metric(metric) for metric in metrics if metric.samples]
        scope = self._types.ScopeMetrics(self._scope, made, "")
        return self._types.MetricsData([self._types.ResourceMetrics(self._resource, [scope], "")])

    def _metric(self, metric: Metric) -> Any:
        types, cumulative = self._types, self._types.AggregationTemporality.CUMULATIVE
        data: Any
        if metric.type == "histogram":
            data = types.Histogram([*self._histograms(metric.samples)], cumulative)
        elif metric.type == "counter":
            totals = [one for one in metric.samples if one.name.endswith("_total")]
            data = types.Sum([*self._numbers(totals)], cumulative, True)
        else:
            data = types.Gauge([*self._numbers(metric.samples)])
        unit = next((unit for end, unit in _UNITS if metric.name.endswith(end)), "")
        name = _CONVENTIONS.get(metric.name, metric.name.replace(":", "."))
        return types.Metric(name, metric.documentation, unit, data)

    def _numbers(self, samples: Iterable[Sample]) -> Iterator[Any]:
        now = time.time_ns()
        for one in samples:
            yield self._types.NumberDataPoint(_attributes(one.labels), self._start, now, one.value)

    def _histograms(self, samples: Iterable[Sample]) -> Iterator[Any]:
        now = time.time_ns()
        for labels, buckets, total in _by_labels(samples):
            bounds, up_to = [*buckets][:-1], [*buckets.values()]
            counts = [int(b - a) for a, b in zip([0.0, *up_to], up_to, strict=False)]
            point: Callable[..., Any] = self._types.HistogramDataPoint
            count = sum(counts)
            # Nobody has noted the least and the greatest value.
            yield point(labels, self._start, now, count, total, counts, bounds, None, None)


def _by_labels(
    samples: Iterable[Sample],
) -> Iterator[tuple[Mapping[str, str], Mapping[float, float], float]]:
    """For each set of labels: how many values are at most so large, by bound, and their sum."""
    found: dict[tuple[tuple[str, str], ...], tuple[dict[float, float], list[float]]] = {}
    for one in samples:
        labels = {name: text for name, text in one.labels.items() if name != "le"}
        buckets, sums = found.setdefault((*labels.items(),), ({}, []))
        if one.name.endswith("_bucket"):
            buckets[float(one.labels["le"])] = one.value
        elif one.name.endswith("_sum"):
            sums.append(one.value)
    for named, (buckets, sums) in found.items():
        yield _attributes(dict(named)), buckets, sum(sums)


def _attributes(labels: Mapping[str, str]) -> dict[str, str]:
    """Labels as attributes, without empty ones."""
    return {_CONVENTIONS.get(name, name): text for name, text in labels.items() if text}
