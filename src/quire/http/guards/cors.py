"""Which web pages may use the server: what a browser asks before, and is told with every answer."""

from __future__ import annotations

from fastapi.responses import Response
from starlette.datastructures import Headers

from quire.http.answers.rendering import respond
from quire.http.config.server import ServerConfig
from quire.http.error_shapes import ErrorAnswer, Problem

_REMEMBERED = "600"  # seconds that a browser need not ask again
_ALL = ("*",)


class Origins:
    """The web pages that are allowed, by their origin: scheme, host and port."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._any = tuple(config.allowed_origins) == _ALL
        self._listed = frozenset(config.allowed_origins)

    def headers(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        """What an answer bears; nothing, where no page asks."""
        origin = headers.get("origin")
        if origin is None or not self._listed:
            return []
        exposed = (b"access-control-expose-headers", b"x-request-id, retry-after")
        if self._any:
            return [(b"access-control-allow-origin", b"*"), exposed]
        vary = (b"vary", b"Origin")
        if origin not in self._listed:
            return [vary]
        allowed = [(b"access-control-allow-origin", origin.encode("latin-1")), exposed, vary]
        if self._config.allow_credentials:
            allowed.append((b"access-control-allow-credentials", b"true"))
        return allowed

    def preflight(self, method: str, headers: Headers) -> Response | None:
        """The answer to a browser that asks whether a page may; None: this is another request.

        It bears no key, and needs none.
        """
        wanted = headers.get("access-control-request-method")
        if method != "OPTIONS" or wanted is None or "origin" not in headers or not self._listed:
            return None
        if not self._any and headers["origin"] not in self._listed:
            problem = Problem(403, "this web page may not use the server (--allowed-origins)")
            return respond(ErrorAnswer.of(problem), 403)
        # "*" would not stand for Authorization.
        asked = headers.get("access-control-request-headers", "")
        config = self._config
        told = {
            "access-control-allow-methods": _those(config.allowed_methods, wanted),
            "access-control-allow-headers": _those(config.allowed_headers, asked),
            "access-control-max-age": _REMEMBERED,
        }
        return Response(
            status_code=204, headers={name: value for name, value in told.items() if value}
        )


def _those(allowed: object, asked: str) -> str:
    return asked if tuple(allowed) == _ALL else ", ".join(allowed)  # type: ignore[arg-type]
