"""What is around every request: its name, its line in the log, and how it ends.

Which web pages may use the server, clients that hang up, bodies that nobody has read, and the
refusal of new requests while the server ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from fastapi.responses import Response
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.engine.forecast import Expected
from quire.http.answers.rendering import respond
from quire.http.config.server import HERE, ServerConfig, is_loopback
from quire.http.errors import (
    SERVER,
    ErrorAnswer,
    Problem,
    ShapedError,
    explain,
    shape_for,
)
from quire.http.guards.turns import Turnstile

logger = logging.getLogger(__name__)
access = logging.getLogger("quire.access")

REQUEST_ID = "request_id"
"""Where the ASGI scope's state has the name of a request, in headers and in logs."""

_HEADER = b"x-request-id"
_EXPECTED = b"x-quire-expected"
_CLEAN = re.compile(rb"[\x21-\x7e]{1,128}")
_LEFT = 499  # nginx's status for a client that has not waited for its answer
_LONGEST_PATH = 200  # bytes of it in a log
_REMEMBERED = "600"  # seconds that a browser need not ask again
_ALL = ("*",)
_APPS = frozenset({"app", "file", "tauri", "vscode-webview", "vscode-file"})
"""Schemes of pages that come with programs of this machine. No web page has such an origin."""


class Envelope:
    """Names each request, by its client's x-request-id or a new one, and tells browsers of origins.

    It is around everything else, so that refusals and failures bear the same. A failure that
    nobody has foreseen ends here, as an answer and in the log.
    """

    def __init__(
        self,
        app: ASGIApp,
        config: ServerConfig,
        expected: Callable[[str], Expected | None] = lambda request_id: None,
    ) -> None:
        self._app, self._expected = app, expected
        self._pages, self._only_here = Pages(config), config.is_for_this_machine
        paths = config.disable_access_log_for_endpoints.encode().split(b",")
        self._quiet = frozenset(path.strip() for path in paths)
        self._root_path = config.root_path
        self._tells = not config.disable_uvicorn_access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        if self._root_path:
            scope["root_path"] = self._root_path
        headers, begun, status = Headers(scope=scope), time.perf_counter(), 0
        request_id = _given_id(scope) or new_id().encode()
        borne = [(_HEADER, request_id), *self._pages.headers(headers)]
        state = scope.setdefault("state", {})
        state[REQUEST_ID] = request_id.decode()

        async def bearing(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *borne, *self._forecast(state)]
            await send(message)

        try:
            answer = self._pages.preflight(scope["method"], headers)
            if answer is None and self._only_here:
                answer = self._pages.refusal(scope, headers)
            await (answer or self._app)(scope, receive, bearing)
        except Exception as error:
            facts = {"request_id": state[REQUEST_ID]}
            logger.exception("request %s failed", state[REQUEST_ID], extra=facts)
            if status:
                raise  # the answer is broken off
            problem = explain(error, state[REQUEST_ID])
            failure = respond(shape_for(scope).of(problem), problem.status)
            await failure(scope, receive, bearing)
        finally:
            self._tell(scope, status or _LEFT, time.perf_counter() - begun)

    def _forecast(self, state: Mapping[str, Any]) -> list[tuple[bytes, bytes]]:
        """The header with the engine's forecast, if there is one."""
        found = self._expected(state[REQUEST_ID])
        if found is None:
            return []
        return [(_EXPECTED, b"first-token=%.3f, end=%.3f" % found)]

    def _tell(self, scope: Scope, status: int, seconds: float) -> None:
        path: bytes = scope.get("raw_path") or scope["path"].encode()
        if self._tells and path not in self._quiet and access.isEnabledFor(logging.INFO):
            shown = path[:_LONGEST_PATH].decode("ascii", "backslashreplace")
            request_id, spent = scope["state"][REQUEST_ID], 1000 * seconds
            facts = {"request_id": request_id, "method": scope["method"], "path": shown,
                     "status": status, "duration_ms": round(spent, 3)}  # fmt: skip
            text = "%s %s %d %.0f ms %s"
            access.info(text, scope["method"], shown, status, spent, request_id, extra=facts)


def _given_id(scope: Scope) -> bytes | None:
    """The client's own request id, if it can stand in a log."""
    given: bytes | None = next((value for name, value in scope["headers"] if name == _HEADER), None)
    return given if given is not None and _CLEAN.fullmatch(given) else None


class AnswerHead:
    """Answers HEAD as GET is answered, without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            return await self._app(scope, receive, send)

        async def without_body(message: Message) -> None:
            await send({**message, "body": b""} if "body" in message else message)

        await self._app({**scope, "method": "GET"}, receive, without_body)


class Pages:
    """The web pages that may use a server, by their origin: scheme, host and port.

    Where no key is needed, a browser of this machine is all that a page of another site needs: it
    can send requests here, or have a name of its own lead here and then read the answers too (DNS
    rebinding). So the name by which a server for this machine alone is called and the origin of a
    page must be of this machine, or allowed.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._names, self._listed = Names(config), frozenset(config.allowed_origins)
        self._any, self._here = "*" in self._listed, HERE in self._listed

    def headers(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        """The CORS headers of an answer; none where no page asks."""
        origin = headers.get("origin")
        if origin is None or not self._listed:
            return []
        exposed = (b"access-control-expose-headers", b"x-request-id, retry-after, x-quire-expected")
        if self._any:
            return [(b"access-control-allow-origin", b"*"), exposed]
        vary = (b"vary", b"Origin")
        if not self._allows(origin):
            return [vary]
        allowed = [(b"access-control-allow-origin", origin.encode("latin-1")), exposed, vary]
        if self._config.allow_credentials:
            allowed.append((b"access-control-allow-credentials", b"true"))
        return allowed

    def preflight(self, method: str, headers: Headers) -> Response | None:
        """The answer to a browser that asks whether a page may; None: this is another request.

        It bears no key, and needs none.
        """
        origin, wanted = headers.get("origin"), headers.get("access-control-request-method")
        if method != "OPTIONS" or wanted is None or origin is None or not self._listed:
            return None
        if not self._allows(origin):
            problem = Problem(403, "this web page may not use the server (--allowed-origins)")
            return respond(ErrorAnswer.of(problem), 403)
        # "*" would not stand for Authorization.
        wanted_headers = headers.get("access-control-request-headers", "")
        allowed = {
            "access-control-allow-methods": _those(self._config.allowed_methods, wanted),
            "access-control-allow-headers": _those(self._config.allowed_headers, wanted_headers),
            "access-control-max-age": _REMEMBERED,
        }
        return Response(status_code=204, headers={name: v for name, v in allowed.items() if v})

    def refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """A 403 of a server for this machine alone; None: it may be served."""
        host, origin = headers.get("host"), headers.get("origin")
        if host is not None and _name_in(host) not in self._names:
            why = (
                f"this server is for its own machine, and {host[:100]!r} is not a name of it: "
                "allow it with --allowed-hosts, or ask for a key (--api-key-file)"
            )
        elif origin is not None and not self._allows(origin):
            why = (
                "this web page may not use the server: allow it with --allowed-origins, or ask "
                "for a key (--api-key-file)"
            )
        else:
            return None
        return respond(shape_for(scope).of(Problem(403, why)), 403)

    def _allows(self, origin: str) -> bool:
        if self._any or origin in self._listed:
            return True
        if not self._here:
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
        self._listed = {"localhost", config.host.lower(), *map(str.lower, config.allowed_hosts)}

    def __contains__(self, name: str) -> bool:
        name = name.lower().rstrip(".")
        return self._any or name in self._listed or is_loopback(name)


def _those(allowed: Sequence[str], wanted: str) -> str:
    return wanted if tuple(allowed) == _ALL else ", ".join(allowed)


def _name_in(host: str) -> str:
    """The name in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


_BODY_HEADERS = (b"content-length", b"transfer-encoding")
_LINGER, _MOST_THROWN_AWAY = 2.0, 2**24  # seconds, bytes


class CancelOnDisconnect:
    """Cancels the work on a request when its client hangs up, streaming or not.

    Cancelling is what closes the engine's iterators, which frees the request's blocks. What is only
    read is answered too soon for that.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._leaving = Turnstile()  # a thousand who hang up together keep nobody waiting

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] == "GET":
            return await self._app(scope, receive, send)
        work, gone, done = asyncio.current_task(), False, False
        assert work is not None
        body: asyncio.Queue[Message] = asyncio.Queue(maxsize=1)

        def cancel() -> None:
            nonlocal gone
            gone = not done
            if gone:
                work.cancel()

        async def listen() -> None:
            while (message := await receive())["type"] != "http.disconnect":
                await body.put(message)
            self._leaving.wait(None, cancel)

        listener = asyncio.ensure_future(listen())
        try:
            await self._app(scope, body.get, send)
        except asyncio.CancelledError:
            if not gone:
                raise
        finally:
            done = True
            listener.cancel()


class CloseUnread:
    """Closes the connection after a refusal that did not wait for the whole body.

    What is left of the body would have to be read before the next request could be. It is thrown
    away for a moment, since a client that is still sending may otherwise never see its answer: a
    socket that is closed with something unread drops what it had sent.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _announces_body(scope):
            return await self._app(scope, receive, send)
        unread, closing = True, False

        async def noting() -> Message:
            nonlocal unread
            message = await receive()
            unread = message.get("more_body", False)
            return message

        async def throw_away() -> None:
            thrown_away = 0
            while unread and thrown_away < _MOST_THROWN_AWAY:
                thrown_away += len((await noting()).get("body", b""))

        async def close_after(message: Message) -> None:
            nonlocal closing
            if message["type"] == "http.response.start" and message["status"] >= 400 and unread:
                closing = True
                others = [header for header in message["headers"] if header[0] != b"connection"]
                message["headers"] = [*others, (b"connection", b"close")]
            if not closing or message.get("more_body", message["type"] == "http.response.start"):
                return await send(message)
            await send({**message, "more_body": True})
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(throw_away(), _LINGER)
            await send({"type": "http.response.body"})

        await self._app(scope, noting, close_after)


def _announces_body(scope: Scope) -> bool:
    lengths = [value for name, value in scope["headers"] if name in _BODY_HEADERS]
    return bool(lengths) and lengths != [b"0"]


_RETRY_AFTER = "5"  # seconds: another server, or the next one here, may be there by then
_LOOK = 0.02  # seconds


@dataclass
class Drain:
    """Whether the end has begun, and how many requests are still to be answered."""

    begun: bool = False
    running: int = 0

    async def ended(self, seconds: float) -> None:
        """Begin the end, and wait until all is answered, for ``seconds`` at most."""
        self.begun, deadline = True, time.monotonic() + seconds
        while self.running and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK)

    def refusal(self, shape: type[ShapedError] = ErrorAnswer) -> Response:
        """What health checks and new requests get."""
        problem = Problem(503, "the server is shutting down", SERVER, code="shutting_down")
        headers = {"retry-after": _RETRY_AFTER, "connection": "close"}
        return respond(shape.of(problem), 503, headers)


class RefuseWhileDraining:
    """Counts requests for work, and refuses them once the end has begun. Reading is no work."""

    def __init__(self, app: ASGIApp, drain: Drain) -> None:
        self._app = app
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self._app(scope, receive, send)
        if self._drain.begun:
            return await self._drain.refusal(shape_for(scope))(scope, receive, send)
        self._drain.running += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._drain.running -= 1


def new_id() -> str:
    """A name for a request. Nobody gains by guessing it, so it takes no entropy from the system."""
    return f"{random.getrandbits(128):032x}"
