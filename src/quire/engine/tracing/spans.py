"""A span for each request, sent to a collector by OpenTelemetry's protocol (OTLP over HTTP)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from queue import Empty, Full, Queue
from typing import Any, NamedTuple

from quire.core.protocol import Request, Step
from quire.engine.tracing.story import Story, served
from quire.engine.tracing.watcher import Standing, Watcher

logger = logging.getLogger(__name__)

_MOST_WAITING = 4096  # requests that are to be told of
_MOST_TOGETHER = 512  # in a message
_GATHERING = 1.0  # seconds until a message is sent
_PATIENCE = 5.0  # seconds that a collector may take
_LINGER = 2.0  # seconds for what is left, at the end


class _Told(NamedTuple):
    story: Story
    standing: Standing
    offset: float  # of the wall clock from the engine's


class SpanSender(Watcher):
    """Notes requests in the engine's thread; makes spans of them, and sends these, in its own.

    Nobody waits for a collector: of what it does not take in time, the newest is dropped. That it
    cannot be reached is told once in the log, and once that it can again.

    num_sent, num_dropped: spans.
    """

    def __init__(
        self,
        endpoint: str,
        model: str,
        version: str,
        server: Mapping[str, Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Where OpenTelemetry is installed.

        server: attributes of all spans. clock: the engine's.
        """
        self._making = _Making(model, version, server)
        self._exporter = _exporter(endpoint)
        self._endpoint = endpoint
        self._clock = clock
        self._living: dict[str, Story] = {}
        self._waiting: Queue[_Told | None] = Queue(_MOST_WAITING)
        self._reached = True
        self.num_sent = self.num_dropped = 0
        self._thread = threading.Thread(target=self._run, name="quire-traces", daemon=True)
        self._thread.start()

    # -- in the engine's thread ----------------------------------------------------------------

    def began(self, request: Request) -> None:
        self._living[request.request_id] = Story(request)

    def planned(self, step: Step) -> None:
        for decision in step.decisions:
            story = self._living.get(decision.request_id)
            if story is not None:
                story.decide(step.now, decision)

    def ended(self, request: Request, standing: Standing) -> None:
        story = self._living.pop(request.request_id, None)
        if story is None:  # it began before anybody watched
            return
        try:
            self._waiting.put_nowait(_Told(story, standing, time.time() - self._clock()))
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
        self._exporter.shutdown()

    def _gather(self) -> tuple[list[_Told], bool]:
        """What comes in some time, and whether more may come."""
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
            reached = not spans or self._exporter.export(spans).name == "SUCCESS"
        except Exception as error:
            logger.debug("spans cannot be sent: %r", error)
            spans, reached = told, False
        if reached:
            self.num_sent += len(spans)
        else:
            self.num_dropped += len(spans)
        if reached is not self._reached:
            self._reached = reached
            text = "is reached again" if reached else "takes no traces: they are dropped until it"
            text += "" if reached else " does; requests are served as ever"
            logger.log(logging.INFO if reached else logging.WARNING,
                       "the collector at %s %s", _place(self._endpoint), text)  # fmt: skip


class _Making:
    """Spans by OpenTelemetry's SDK, whose sampler (OTEL_TRACES_SAMPLER) says which are wanted."""

    def __init__(self, model: str, version: str, server: Mapping[str, Any]) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._made = made = list[Any]()

        class Collected(SpanProcessor):
            def on_end(self, span: ReadableSpan) -> None:
                made.append(span)

        self._model, self._server = model, server
        # What the environment says (OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES) goes before.
        resource = Resource({"service.name": "quire"}).merge(_said_outside(Resource.create()))
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(Collected())
        self._tracer = provider.get_tracer("quire", version)
        self._context = TraceContextTextMapPropagator().extract
        self._kind, self._failed = SpanKind.SERVER, Status(StatusCode.ERROR)

    def spans(self, told: _Told) -> list[Any]:
        """One, or none if it is not wanted."""
        story, standing, offset = told
        request = story.request
        model = served(request, self._model)
        attributes = {**self._server, **story.attributes(model, standing)}
        headers = {"traceparent": request.origin.traceparent,
                   "tracestate": request.origin.tracestate}  # fmt: skip
        span = self._tracer.start_span(
            f"{attributes['gen_ai.operation.name']} {model}",
            self._context({name: text for name, text in headers.items() if text}),
            self._kind,
            attributes,
            start_time=_nanoseconds(request.arrival + offset),
        )
        for name, moment, facts in story.events(standing):
            span.add_event(name, facts, _nanoseconds(moment + offset))
        if standing.error is not None:
            span.set_status(self._failed)
        span.end(_nanoseconds(standing.metrics.finished_time + offset))
        made = [*self._made]
        self._made.clear()
        return made


def _said_outside(resource: Any) -> Any:
    """Without the name that OpenTelemetry gives a service that has none."""
    attributes: Mapping[str, Any] = resource.attributes
    if str(attributes.get("service.name", "")).startswith("unknown_service"):
        kept = {name: value for name, value in attributes.items() if name != "service.name"}
        return type(resource)(kept)
    return resource


def _exporter(endpoint: str) -> Any:
    from opentelemetry.exporter.otlp.proto.http import trace_exporter

    # It would tell of every message that fails.
    logging.getLogger(trace_exporter.__name__).setLevel(logging.CRITICAL)
    return trace_exporter.OTLPSpanExporter(endpoint=endpoint, timeout=_PATIENCE)


def _place(endpoint: str) -> str:
    """Without what may be a secret in it."""
    scheme, _, rest = endpoint.partition("://")
    return f"{scheme}://{rest.partition('/')[0].rpartition('@')[2]}"


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
