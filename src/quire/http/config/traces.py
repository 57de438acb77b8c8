"""Where spans are sent."""

from __future__ import annotations

from importlib.util import find_spec
from urllib.parse import urlsplit

from quire.core.errors import ConfigError

_PATH = "/v1/traces"
_PACKAGES = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")


def checked_traces_endpoint(given: str) -> str:
    """With the path that collectors listen on, where it has none.

    ConfigError: it is no URL, or what sends spans is not installed.
    """
    try:
        parts = urlsplit(given)
        named = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        named, parts = False, urlsplit("")
    if not named or parts.scheme not in ("http", "https"):
        # It may hold a password, and is not shown.
        raise ConfigError(
            "otlp_traces_endpoint must be a URL that begins with http:// or https://, such as "
            "http://localhost:4318; collectors speak gRPC, which is not spoken here, on 4317"
        )
    if not all(map(_is_there, _PACKAGES)):
        raise ConfigError(
            "otlp_traces_endpoint needs OpenTelemetry: pip install 'quire[otel]' (its packages "
            "opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http)"
        )
    return parts._replace(path=_PATH).geturl() if parts.path in ("", "/") else given


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:  # of what it is in
        return False
