"""Where OpenTelemetry's data goes, by a flag, and by the variables that all its programs heed."""

from __future__ import annotations

import os
from importlib.util import find_spec
from urllib.parse import urlsplit

from quire.core.errors import ConfigError, shown

HTTP, GRPC = "http/protobuf", "grpc"
EXPORTERS = {
    HTTP: "opentelemetry.exporter.otlp.proto.http",
    GRPC: "opentelemetry.exporter.otlp.proto.grpc",
}
"""By protocol, the package that speaks it."""

_SDK = "opentelemetry.sdk"
_TRACES_PATH = "/v1/traces"


def protocol_of(signal: str) -> str:
    """How one kind of data is sent: traces, or metrics. ConfigError: as nobody here can."""
    for name in (f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if given := os.environ.get(name, "").strip():
            if given not in EXPORTERS:
                raise ConfigError(f"{name} must be {HTTP} or {GRPC}, got {shown(given)}")
            return given
    return HTTP


def wants_metrics() -> bool:
    """Whether metrics are to be sent by OTLP, which OTEL_METRICS_EXPORTER says."""
    wanted = os.environ.get("OTEL_METRICS_EXPORTER", "").split(",")
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return "otlp" in [one.strip() for one in wanted] and not disabled


def metrics_protocol() -> str | None:
    """How metrics can be sent; None: not at all, since packages are missing.

    ConfigError: see ``protocol_of``.
    """
    protocol = protocol_of("metrics")
    return protocol if _can_send(protocol) else None


def checked_endpoint(given: str) -> str:
    """The URL of a collector; by HTTP with the path that collectors listen on if it has none.

    ConfigError: it is no URL, or OpenTelemetry is not installed.
    """
    protocol = protocol_of("traces")
    try:
        parts = urlsplit(given)
        named = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        named, parts = False, urlsplit("")
    example = "http://localhost:4317"
    if protocol == HTTP:
        example = "http://localhost:4318; for gRPC (port 4317) set OTEL_EXPORTER_OTLP_PROTOCOL=grpc"
    known = parts.scheme in ("http", "https") or (parts.scheme, protocol) == (GRPC, GRPC)
    if not named or not known:
        # The URL may hold a password, and is not shown.
        raise ConfigError(
            "otlp_traces_endpoint must be a URL that begins with http:// or https://, such as "
            f"{example}"
        )
    if not _can_send(protocol):
        package = EXPORTERS[protocol].partition("exporter.")[2].replace(".", "-")
        raise ConfigError(
            "otlp_traces_endpoint needs OpenTelemetry: pip install 'quire-llm[otel]' (its packages "
            f"opentelemetry-sdk and opentelemetry-exporter-{package})"
        )
    bare = protocol == HTTP and parts.path in ("", "/")
    return parts._replace(path=_TRACES_PATH).geturl() if bare else given


def _can_send(protocol: str) -> bool:
    """Whether the packages for it are installed."""
    try:
        return all(find_spec(module) is not None for module in (_SDK, EXPORTERS[protocol]))
    except ImportError:  # the parent package of one is missing
        return False
