"""Latencies by OpenTelemetry's conventions for GenAI servers, as Prometheus names them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry

from quire.core.protocol import Request
from quire.engine.tracing import PROVIDER, Standing, Watcher, operation, served
from quire.http.histograms import ForgettingHistogram

# The buckets are those that the conventions advise.
_DURATION = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_FIRST = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
_LATER = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_LABELS = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")


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
