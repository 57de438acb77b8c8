"""What an engine has done and holds, in figures, as vLLM's ``LLM.get_metrics`` tells them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from quire.engine.engine import Engine


@dataclass
class Metric:
    """A figure, by the name that /metrics has for it."""

    name: str
    labels: dict[str, str]


@dataclass
class Counter(Metric):
    """One that only grows."""

    value: int


@dataclass
class Gauge(Metric):
    """One of this moment."""

    value: float


def figures_of(engine: Engine, model_name: str) -> list[Metric]:
    """The engine's figures; to be called between two steps."""
    labels = {"model_name": model_name}
    return [
        *(Gauge(f"quire:{name}", labels, value) for name, value in _gauges(engine)),
        *(Counter(f"quire:{name}", labels, value) for name, value in _counters(engine)),
    ]


def _gauges(engine: Engine) -> Iterator[tuple[str, float]]:
    scheduler, usage = engine.scheduler, engine.scheduler.allocator.usage()
    taken = 1 - (usage.cached + usage.free) / usage.capacity if usage.capacity else 0.0
    yield "num_requests_running", len(scheduler.running)
    yield "num_requests_waiting", scheduler.queue.num_waiting
    yield "num_sessions", engine.sessions.num_open
    yield "kv_cache_usage_perc", taken


def _counters(engine: Engine) -> Iterator[tuple[str, int]]:
    of_steps, of_scheduling = engine.stats, engine.scheduler.stats
    yield "prefix_cache_queries", of_scheduling.prefix_queries
    yield "prefix_cache_hits", of_scheduling.prefix_hits
    yield "num_preemptions", of_scheduling.num_preemptions
    yield "num_steps", of_steps.num_steps
    yield "num_tokens", of_steps.num_tokens
    yield "spec_decode_num_drafts", of_steps.num_drafts
    yield "spec_decode_num_draft_tokens", of_steps.num_draft_tokens
    yield "spec_decode_num_accepted_tokens", of_steps.num_accepted_tokens
