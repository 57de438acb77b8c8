"""A server for this machine alone, which pages of other sites must not reach through a browser."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from quire.http.answers.rendering import respond
from quire.http.config.server import HERE, ServerConfig, is_loopback
from quire.http.error_shapes import Problem, shape_for

_APPS = frozenset({"app", "file", "tauri", "vscode-webview", "vscode-file"})
"""Schemes of pages that come with programs of this machine. No web page has such an origin."""


class Origins:
    """The web pages that may use a server, by their origin: scheme, host and port."""

    def __init__(self, config: ServerConfig) -> None:
        self.any = "*" in config.allowed_origins
        self.there_are = bool(config.allowed_origins)
        self._listed = frozenset(config.allowed_origins)
        self._names = Names(config) if HERE in config.allowed_origins else None

    def __contains__(self, origin: str) -> bool:
        if self.any or origin in self._listed:
            return True
        if self._names is None:
            return False
        try:
            parts = urlsplit(origin)
            scheme, host = parts.scheme, parts.hostname
        except ValueError:
            return False
        if scheme in ("http", "https"):
            return host is not None and host in self._names
        return scheme in _APPS


class Names:
    """The names by which a server that listens on this machine alone may be called."""

    def __init__(self, config: ServerConfig) -> None:
        self._any = "*" in config.allowed_hosts
        self._listed = {config.host.lower(), *map(str.lower, config.allowed_hosts)}

    def __contains__(self, name: str) -> bool:
        name = name.lower().rstrip(".")
        return self._any or name in self._listed or is_loopback(name)


class OnlyHere:
    """Answers 403 to what a page of another site has sent.

    Where no key is needed, a browser of this machine is all that such a page needs: it can send
    requests here, or have a name of its own lead here and then read the answers too (DNS
    rebinding). So the name by which the server is called and the origin of a page must be of this
    machine, or allowed.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self._app = app
        self._names, self._origins = Names(config), Origins(config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            host, origin = headers.get("host"), headers.get("origin")
            told = None
            if host is not None and _name_in(host) not in self._names:
                told = (
                    f"this server is for its own machine, and {host[:100]!r} is no name of it: "
                    "allow it with --allowed-hosts, or ask for a key (--api-key-file)"
                )
            elif origin is not None and origin not in self._origins:
                told = (
                    "this web page may not use the server: allow it with --allowed-origins, or ask "
                    "for a key (--api-key-file)"
                )
            if told is not None:
                refusal = respond(shape_for(scope).of(Problem(403, told)), 403)
                return await refusal(scope, receive, send)
        return await self._app(scope, receive, send)


def _name_in(host: str) -> str:
    """Of a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
