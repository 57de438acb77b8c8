"""One request from its arrival to its end, for a span."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from quire.core.protocol import Decision, Request, Verdict
from quire.engine.tracing.watcher import Standing

PROVIDER = "quire"

Value = str | bool | int | float | list[str]

_MOST_EVENTS = 100  # of a request; a pool that is far too small preempts for ever


class Event(NamedTuple):
    name: str
    time: float  # seconds, on the engine's clock
    facts: Mapping[str, Value]


class Story:
    """What is decided about a request while it lives. No text of its own is in it."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.admitted: float | None = None  # the first time
        self._events = [Event("queued", request.arrival, {})]
        self._waits = ""  # why

    def decide(self, time: float, decision: Decision) -> None:
        if decision.what is Verdict.WAIT:
            if decision.why == self._waits:
                return
            self._waits = decision.why
        else:
            self._waits = ""
        name = _NAMES.get(decision.what, decision.what.value)
        if decision.what is Verdict.ADMIT:
            if self.admitted is None:
                self.admitted = time
            else:
                name = "resumed"
        if len(self._events) < _MOST_EVENTS:
            self._events.append(Event(name, time, _figures(decision)))

    def events(self, standing: Standing) -> list[Event]:
        """In order, with the first token and the end."""
        metrics = standing.metrics
        told = [*self._events]
        if metrics.first_token_time is not None:
            told.append(Event("first token", metrics.first_token_time, {}))
        end: dict[str, Value] = {"quire.reasons": reasons(standing)}
        told.sort(key=lambda event: event.time)
        return [*told, Event("finished", metrics.finished_time, end)]

    def attributes(self, model: str, standing: Standing) -> dict[str, Value]:
        """By the conventions for GenAI, by their old names, and by vLLM's."""
        request, params, metrics = self.request, self.request.params, standing.metrics
        inputs, outputs = metrics.num_prompt_tokens, metrics.num_output_tokens
        given: dict[str, Value | None] = {
            "gen_ai.operation.name": operation(request),
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.system": PROVIDER,
            "gen_ai.request.model": model,
            "gen_ai.response.model": model,
            "gen_ai.request.id": request.request_id,
            "gen_ai.response.finish_reasons": reasons(standing),
            "gen_ai.usage.input_tokens": inputs,
            "gen_ai.usage.prompt_tokens": inputs,
            "gen_ai.usage.cache_read.input_tokens": metrics.cached_tokens,
            "gen_ai.usage.output_tokens": outputs,
            "gen_ai.usage.completion_tokens": outputs,
            "gen_ai.latency.time_in_queue": _since(metrics.arrival_time, self.admitted),
            "gen_ai.latency.time_to_first_token": metrics.ttft,
            "gen_ai.latency.e2e": metrics.e2e_latency,
            "quire.request_id": request.origin.request_id or None,
            "quire.blocks.peak": metrics.peak_blocks,
            "quire.blocks.seconds": metrics.block_seconds,
            "quire.preemptions.swaps": metrics.num_swaps,
            "quire.preemptions.recomputes": metrics.num_recomputes,
            "quire.swapped_bytes": metrics.swapped_bytes,
            "quire.fetched_tokens": metrics.fetched_tokens,
            "quire.drafts.tokens": metrics.num_draft_tokens,
            "quire.drafts.accepted_tokens": metrics.num_accepted_tokens,
            "error.type": standing.error,
        }
        if request.pooling is None:
            given |= {
                "gen_ai.request.max_tokens": request.max_tokens,
                "gen_ai.request.temperature": params.temperature,
                "gen_ai.request.top_p": params.top_p,
                "gen_ai.request.n": params.num_outputs,
                "gen_ai.request.choice.count": params.num_outputs,
            }
        return {name: value for name, value in given.items() if value is not None}


def operation(request: Request) -> str:
    return request.origin.operation if request.pooling is None else "embeddings"


def served(request: Request, model: str) -> str:
    """The model that a request is served by: an adapter's name, or the model's own."""
    return model if request.adapter is None else request.adapter.name


def reasons(standing: Standing) -> list[str]:
    """Why the outputs ended; one that had not ended when its request did was broken off."""
    broken = "abort" if standing.error is None else "error"
    return [reason or broken for reason in standing.finish_reasons]


_NAMES = {
    Verdict.ADMIT: "admitted",
    Verdict.WAIT: "waiting",
    Verdict.SWAP: "preempted",
    Verdict.RECOMPUTE: "preempted",
    Verdict.RESUME: "resumed",
    Verdict.EXPIRE: "expired",
}


def _figures(decision: Decision) -> dict[str, Value]:
    given: dict[str, Value | None] = {
        "quire.verdict": decision.what.value,
        "quire.why": decision.why,
        "quire.needed": decision.needed,
        "quire.free": decision.free,
        "quire.swap_seconds": decision.swap_seconds,
        "quire.recompute_seconds": decision.recompute_seconds,
        "quire.remedy": decision.remedy,
    }
    return {name: value for name, value in given.items() if value is not None}


def _since(begin: float, end: float | None) -> float | None:
    return None if end is None else end - begin
