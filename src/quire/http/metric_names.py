"""The names of metrics: Quire's own, vLLM's where it has the same, or both."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

_OWN, _VLLM = "quire:", "vllm:"

# What means in vLLM what it means here. A counter's name is without _total.
_SHARED = frozenset({
    "cache_config_info",
    "e2e_request_latency_seconds",
    "generation_tokens",
    "inter_token_latency_seconds",
    "kv_cache_usage_perc",
    "lora_requests_info",
    "num_preemptions",
    "num_requests_running",
    "num_requests_waiting",
    "prefix_cache_hits",
    "prefix_cache_queries",
    "prompt_tokens",
    "request_generation_tokens",
    "request_prompt_tokens",
    "request_success",
    "request_time_per_output_token_seconds",
    "spec_decode_num_accepted_tokens",
    "spec_decode_num_accepted_tokens_per_pos",
    "spec_decode_num_draft_tokens",
    "spec_decode_num_drafts",
    "time_to_first_token_seconds",
})  # fmt: skip


class NamedMetrics:
    """A registry's metrics by other names, to be collected.

    names: quire, vllm or both.
    """

    def __init__(self, registry: CollectorRegistry, names: str) -> None:
        self._registry = registry
        self._names = names

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            shared = metric.name.removeprefix(_OWN) in _SHARED
            if self._names != "vllm" or not shared:
                yield metric
            if self._names != "quire" and shared:
                yield _as_vllms(metric)


def _as_vllms(metric: Metric) -> Metric:
    copy = Metric(_renamed(metric.name), metric.documentation, metric.type)
    copy.samples = [sample._replace(name=_renamed(sample.name)) for sample in metric.samples]
    return copy


def _renamed(name: str) -> str:
    return _VLLM + name.removeprefix(_OWN)
