"""A collector of OpenTelemetry's traces and metrics, on the loopback, by HTTP or by gRPC."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """Keeps what it is sent. status: what it answers; by gRPC, only whether that is 200."""

    def __init__(self) -> None:
        self.status = 200
        self.bodies: list[bytes] = []  # of traces
        self.metric_bodies: list[bytes] = []
        self.headers: dict[str, str] = {}  # of the latest message
        self.paths: set[str] = set()
        self.url = ""

    @property
    def spans(self) -> list[Any]:
        found = []
        for body in self.bodies:
            request = ExportTraceServiceRequest()
            request.ParseFromString(body)
            for resource in request.resource_spans:
                found += [span for scope in resource.scope_spans for span in scope.spans]
        return found

    def metrics(self) -> dict[str, Any]:
        """The latest, by name."""
        request = ExportMetricsServiceRequest()
        request.ParseFromString(self.metric_bodies[-1])
        scopes = [scope for one in request.resource_metrics for scope in one.scope_metrics]
        return {metric.name: metric for scope in scopes for metric in scope.metrics}

    def take(self, path: str, body: bytes) -> bool:
        self.paths.add(path)
        if self.status == 200:
            (self.metric_bodies if path.endswith("metrics") else self.bodies).append(body)
        return self.status == 200


def attributes(given: Any) -> dict[str, Any]:
    """Of a span or an event."""
    found = {}
    for one in given.attributes:
        kind = one.value.WhichOneof("value")
        value = getattr(one.value, kind)
        if kind == "array_value":
            value = [item.string_value for item in value.values]
        found[one.key] = value
    return found


@contextmanager
def collector() -> Iterator[Collector]:
    kept = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            kept.headers = {name.lower(): text for name, text in self.headers.items()}
            kept.take(self.path, body)
            self.send_response(kept.status)
            self.end_headers()

        def log_message(self, *ignored: object) -> None:
            """Nothing: it would be on the terminal."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        kept.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield kept
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def grpc_collector() -> Iterator[Collector]:
    import grpc
    from opentelemetry.proto.collector.metrics.v1 import (
        metrics_service_pb2,
        metrics_service_pb2_grpc,
    )
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

    kept = Collector()

    def take(path: str, request: Any, context: Any, answer: Any) -> Any:
        kept.headers = dict(context.invocation_metadata())
        if not kept.take(path, request.SerializeToString()):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not now")
        return answer()

    class Traces(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            answer = trace_service_pb2.ExportTraceServiceResponse
            return take("grpc traces", request, context, answer)

    class Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            answer = metrics_service_pb2.ExportMetricsServiceResponse
            return take("grpc metrics", request, context, answer)

    server = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Traces(), server)
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(Metrics(), server)
    kept.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield kept
    finally:
        server.stop(None).wait()
