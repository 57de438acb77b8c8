"""A collector of OpenTelemetry's data (OTLP), by HTTP or gRPC, and whether it takes what comes."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from importlib import import_module
from typing import Any

logger = logging.getLogger(__name__)

_PATIENCE = 5.0  # seconds that a collector may take
_KINDS = {
    "traces": ("trace_exporter", "OTLPSpanExporter"),
    "metrics": ("metric_exporter", "OTLPMetricExporter"),
}
_CHATTY = ("", "._common", ".exporter", ".trace_exporter", ".metric_exporter")  # their loggers


class Collector:
    """Takes one kind of data. That it cannot be reached is logged once, and once that it can again.

    Needs OpenTelemetry's exporter for the protocol.

    signal: traces or metrics. protocol: http/protobuf or grpc.
    endpoint: its URL; None: as OpenTelemetry's variables say.
    """

    def __init__(self, signal: str, protocol: str, endpoint: str | None) -> None:
        package = f"opentelemetry.exporter.otlp.proto.{protocol.partition('/')[0]}"
        module, name = _KINDS[signal]
        for part in _CHATTY:  # they would tell of every message that fails
            logging.getLogger(package + part).setLevel(logging.CRITICAL)
        make = getattr(import_module(f"{package}.{module}"), name)
        self._exporter = make(endpoint=endpoint, timeout=_PATIENCE)
        self._signal, self._reached = signal, True
        self._place = _place(endpoint or "")

    def takes(self, data: Any) -> bool:
        """Send data, and wait; whether the collector has taken it."""
        try:
            taken = bool(self._exporter.export(data).name == "SUCCESS")
        except Exception as error:
            logger.debug("%s cannot be sent: %r", self._signal, error)
            taken = False
        self.tell(taken)
        return taken

    def tell(self, taken: bool) -> None:
        """Log when the collector begins or ceases to take data."""
        if taken is self._reached:
            return
        self._reached = taken
        text = (
            "is reached again" if taken else f"takes no {self._signal}: they are dropped until it"
        )
        text += "" if taken else " does; requests are served as ever"
        level = logging.INFO if taken else logging.WARNING
        logger.log(level, "the collector%s %s", self._place, text)

    def close(self) -> None:
        self._exporter.shutdown()


def resource() -> Any:
    """Who sends: what the environment says (OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES) first."""
    from opentelemetry.sdk.resources import Resource

    own = {"service.name": "quire", "service.instance.id": str(uuid.uuid4())}
    return Resource(own).merge(_said_outside(Resource.create()))


def _said_outside(resource: Any) -> Any:
    """The resource without OpenTelemetry's name for a service that has none."""
    attributes: Mapping[str, Any] = resource.attributes
    if str(attributes.get("service.name", "")).startswith("unknown_service"):
        kept = {name: value for name, value in attributes.items() if name != "service.name"}
        return type(resource)(kept)
    return resource


def _place(endpoint: str) -> str:
    """The address without what may be a secret in it."""
    scheme, _, rest = endpoint.partition("://")
    return f" at {scheme}://{rest.partition('/')[0].rpartition('@')[2]}" if rest else ""
