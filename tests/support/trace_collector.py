"""A collector of OpenTelemetry's traces, on the loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """Keeps what it is sent. status: what it answers."""

    def __init__(self) -> None:
        self.status = 200
        self.bodies: list[bytes] = []
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
            kept.paths.add(self.path)
            if kept.status == 200:
                kept.bodies.append(body)
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
