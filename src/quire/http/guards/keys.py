"""API keys: who may use the server, and the few paths that need none."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from hashlib import blake2b

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from quire.http.answers.rendering import respond
from quire.http.config.server import ServerConfig
from quire.http.errors import Problem, route_path, shape_for

KEY_NAME = "api_key_name"
"""Where the ASGI scope's state names the key that a request bears, if there are several."""

_NAME_LENGTH = 16
_OPEN = frozenset({"/health", "/v1/health", "/ping", "/version"})
_METRICS = "/metrics"
PAGE = "/page/"
"""Below it are the files of the page, which is at /."""
COOKIE = "quire_page"
PAGE_HEADER = "x-quire-page"
"""Only with it does a cookie count: scripts of other origins may not send it unasked."""
LASTS = 12 * 3600  # seconds
_MAC, _PERSON = 32, b"quire page"


class ApiKeys:
    """The keys that clients may bear, known by digests under a secret of this process."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._secret = secrets.token_bytes(32)
        self._digests = [self._digest(key.encode()) for key in keys]

    @property
    def several(self) -> bool:
        return len(self._digests) > 1

    def name(self, presented: bytes) -> str | None:
        """A name that tells nothing about the key; None: it is none of them.

        How long it takes depends on no key.
        """
        digest = self._digest(presented)
        matches = [secrets.compare_digest(digest, known) for known in self._digests]
        return digest.hex()[:_NAME_LENGTH] if any(matches) else None

    def _digest(self, key: bytes) -> bytes:
        return blake2b(key, key=self._secret, digest_size=32).digest()


class RequireApiKey:
    """Answers 401 on all but a few paths unless the request bears a key.

    So a route that is added later is guarded. The request's body is not read before that. The page
    bears its login in place of a key.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self._app = app
        self._keys = ApiKeys(config.api_key)
        self._logins = Logins(config.api_key if config.dashboard else ())
        self._config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or is_open(route_path(scope), self._config):
            return await self._app(scope, receive, send)
        key = presented_key(scope) or self._logins.key(login_of(HTTPConnection(scope)), time.time())
        name = self._keys.name(key)
        if name is None:
            problem = Problem(401, "the API key is missing or wrong", code="invalid_api_key")
            headers = {"www-authenticate": "Bearer"}
            refusal = respond(shape_for(scope).of(problem), 401, headers)
            return await refusal(scope, receive, send)
        if self._keys.several:
            scope.setdefault("state", {})[KEY_NAME] = name
        await self._app(scope, receive, send)


def is_open(path: str, config: ServerConfig) -> bool:
    """Whether a path needs no key; the page shows nothing before its login."""
    if path == "/" or path.startswith(PAGE):
        return config.dashboard
    return path in _OPEN or (path == _METRICS and not config.api_key_metrics)


def presented_key(scope: Scope) -> bytes:
    """The key that a request bears: as a bearer token, or in Anthropic's header; no key is empty.

    Both headers may be there if they say the same, but none of them twice.
    """
    credentials, keys = (
        [value.strip() for key, value in scope["headers"] if key.lower() == name]
        for name in (b"authorization", b"x-api-key")
    )
    borne = {*map(_bearer_token, credentials), *keys}
    return borne.pop() if len(borne) == 1 and max(len(credentials), len(keys)) == 1 else b""


def _bearer_token(credentials: bytes) -> bytes:
    scheme, _, token = credentials.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""


class Logins:
    """Tokens that prove who had one of the keys. They end with their time, or with the key.

    They hold for every process that knows the key, so a server that restarts keeps its pages.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = [key.encode() for key in keys]

    @staticmethod
    def token(key: bytes, now: float) -> str:
        """A token for whoever has shown that key."""
        until = str(int(now) + LASTS)
        return f"{until}.{_mac(key, until)}"

    def key(self, token: str, now: float) -> bytes:
        """The key that a token was made for; empty if it is not valid, or no longer."""
        until, _, mac = token.partition(".")
        if not (token.isascii() and until.isdigit() and len(until) < _MAC and int(until) > now):
            return b""
        good = [secrets.compare_digest(_mac(key, until), mac) for key in self._keys]
        return self._keys[good.index(True)] if any(good) else b""


def login_of(http: HTTPConnection) -> str:
    """The login token of the page's request, or nothing."""
    return http.cookies.get(COOKIE, "") if PAGE_HEADER in http.headers else ""


def keep(response: Response, http: HTTPConnection, token: str) -> None:
    """Set the cookie, out of the reach of scripts; an empty token deletes it."""
    response.set_cookie(
        COOKIE,
        token,
        max_age=LASTS if token else 0,
        path=http.scope.get("root_path") or "/",
        secure=http.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


def _mac(key: bytes, until: str) -> str:
    secret = blake2b(key, person=_PERSON).digest()
    return blake2b(until.encode(), key=secret, digest_size=_MAC).hexdigest()
