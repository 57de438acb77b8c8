"""A span for each request, sent to a collector by OpenTelemetry's protocol (OTLP)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from queue import Empty, Full, Queue
from typing import Any, NamedTuple

from quire.core.protocol import Decision, Request, Step, Verdict
from quire.engine.events import RequestState, Watcher
from quire.engine.tracing.collector import Collector, resource
from quire.text.params import params_of

logger = logging.getLogger(__name__)

PROVIDER = "quire"

_Value = str | bool | int | float | list[str]
_MOST_EVENTS = 100  # of a request; a pool that is far too small preempts for ever
_MOST_WAITING = 4096  # requests that are to be told of
_MOST_TOGETHER = 512  # in a message
_GATHERING = 1.0  # seconds until a message is sent
_LINGER = 2.0  # seconds for what is left, at the end


class _Event(NamedTuple):
    name: str
    time: float  # seconds, on the engine's clock
    facts: Mapping[str, _Value]


class _Story:
    """One request from its arrival to its end, without its text."""

    def __init__(self, request: Request) -> None:
        self.admitted: float | None = None  # the first time
        self._events = [_Event("queued", request.arrival, {})]
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
            self._events.append(_Event(name, time, _figures(decision)))

    def events(self, state: RequestState) -> list[_Event]:
        """Its events in order, with the first token and the end."""
        metrics = state.metrics
        told = [*self._events]
        if metrics.first_token_time is not None:
            told.append(_Event("first token", metrics.first_token_time, {}))
        end: dict[str, _Value] = {"quire.reasons": _reasons(state)}
        told.sort(key=lambda event: event.time)
        return [*told, _Event("finished", metrics.finished_time, end)]

    def attributes(self, model: str, state: RequestState) -> dict[str, _Value]:
        """Its attributes by GenAI's conventions, by their old names, and by vLLM's."""
        request, params, metrics = state.request, params_of(state.request), state.metrics
        inputs, outputs = metrics.num_prompt_tokens, metrics.num_output_tokens
        given: dict[str, _Value | None] = {
            "gen_ai.operation.name": state.operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.system": PROVIDER,
            "gen_ai.request.model": model,
            "gen_ai.response.model": model,
            "gen_ai.request.id": request.request_id,
            "gen_ai.response.finish_reasons": _reasons(state),
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
            "error.type": state.error,
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


def _reasons(state: RequestState) -> list[str]:
    """Why the outputs ended; one that had not ended when its request did was broken off."""
    broken = "abort" if state.error is None else "error"
    return [reason or broken for reason in state.finish_reasons]


_NAMES = {
    Verdict.ADMIT: "admitted",
    Verdict.WAIT: "waiting",
    Verdict.SWAP: "preempted",
    Verdict.RECOMPUTE: "preempted",
    Verdict.RESUME: "resumed",
    Verdict.EXPIRE: "expired",
    Verdict.SIT_OUT: "sat out",
}


def _figures(decision: Decision) -> dict[str, _Value]:
    given: dict[str, _Value | None] = {
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


class _Told(NamedTuple):
    story: _Story
    state: RequestState
    offset: float  # of the wall clock from the engine's


class SpanSender(Watcher):
    """Notes requests in the engine's thread; makes spans of them, and sends these, in its own.

    Nobody waits for a collector: of what it does not take in time, the newest is dropped.

    num_sent, num_dropped: spans.
    """

    def __init__(
        self,
        collector: Collector,
        model: str,
        version: str,
        server: Mapping[str, Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Where OpenTelemetry is installed.

        server: attributes of all spans. clock: the engine's.
        """
        self._making = _Making(model, version, server)
        self._collector = collector
        self._clock = clock
        self._living: dict[str, _Story] = {}
        self._waiting: Queue[_Told | None] = Queue(_MOST_WAITING)
        self.num_sent = self.num_dropped = 0
        self._thread = threading.Thread(target=self._run, name="quire-traces", daemon=True)
        self._thread.start()

    # -- in the engine's thread ----------------------------------------------------------------

    def began(self, request: Request) -> None:
        self._living[request.request_id] = _Story(request)

    def decided(self, step: Step) -> None:
        for decision in step.decisions:
            story = self._living.get(decision.request_id)
            if story is not None:
                story.decide(step.now, decision)

    def ended(self, state: RequestState) -> None:
        story = self._living.pop(state.request.request_id, None)
        if story is None:  # it began before anybody watched
            return
        try:
            self._waiting.put_nowait(_Told(story, state, time.time() - self._clock()))
        except Full:
            self.num_dropped += 1

    def close(self) -> None:
        """Send what waits, if that can be done soon."""
        try:
            self._waiting.put(None, timeout=_LINGER)
        except Full:
            return
        self._thread.join(_LINGER)

    # -- in its own ----------------------------------------------------------------------------

    def _run(self) -> None:
        going = True
        while going:
            told, going = self._gather()
            if told:
                self._send(told)
        self._collector.close()

    def _gather(self) -> tuple[list[_Told], bool]:
        """The requests that end within a second, and whether more may come."""
        told, until = list[_Told](), None
        while len(told) < _MOST_TOGETHER:
            try:
                left = None if until is None else max(0.0, until - time.monotonic())
                one = self._waiting.get(timeout=left)
            except Empty:
                break
            if one is None:
                return told, False
            told.append(one)
            until = until or time.monotonic() + _GATHERING
        return told, True

    def _send(self, told: list[_Told]) -> None:
        try:
            spans = [span for one in told for span in self._making.spans(one)]
        except Exception as error:
            logger.debug("spans cannot be made: %r", error)
            self._collector.tell(False)
            self.num_dropped += len(told)
            return
        if not spans or self._collector.takes(spans):
            self.num_sent += len(spans)
        else:
            self.num_dropped += len(spans)


class _Making:
    """Spans by OpenTelemetry's SDK, whose sampler (OTEL_TRACES_SAMPLER) says which are wanted."""

    def __init__(self, model: str, version: str, server: Mapping[str, Any]) -> None:
        from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._made = made = list[Any]()

        class Collected(SpanProcessor):
            def on_end(self, span: ReadableSpan) -> None:
                made.append(span)

        self._model, self._server = model, server
        provider = TracerProvider(resource=resource(), shutdown_on_exit=False)
        provider.add_span_processor(Collected())
        self._tracer = provider.get_tracer("quire", version)
        self._context = TraceContextTextMapPropagator().extract
        self._kind, self._failed = SpanKind.SERVER, Status(StatusCode.ERROR)

    def spans(self, told: _Told) -> list[Any]:
        """The span of a request, or none if it is not sampled."""
        story, state, offset = told
        request = state.request
        model = state.served_by(self._model)
        attributes = {**self._server, **story.attributes(model, state)}
        headers = {"traceparent": request.origin.traceparent,
                   "tracestate": request.origin.tracestate}  # fmt: skip
        span = self._tracer.start_span(
            f"{attributes['gen_ai.operation.name']} {model}",
            self._context({name: text for name, text in headers.items() if text}),
            self._kind,
            attributes,
            start_time=_nanoseconds(request.arrival + offset),
        )
        for name, moment, facts in story.events(state):
            span.add_event(name, facts, _nanoseconds(moment + offset))
        if state.error is not None:
            span.set_status(self._failed)
        span.end(_nanoseconds(state.metrics.finished_time + offset))
        made = [*self._made]
        self._made.clear()
        return made


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
