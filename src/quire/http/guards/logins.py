"""Logins of the page: what a browser keeps in place of an API key."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from hashlib import blake2b

from starlette.requests import HTTPConnection
from starlette.responses import Response

COOKIE = "quire_page"
PAGE_HEADER = "x-quire-page"
"""Only with it does a cookie count: scripts of other origins may not send it unasked."""
LASTS = 12 * 3600  # seconds
_MAC, _PERSON = 32, b"quire page"


class Logins:
    """Tokens that prove who had one of the keys. They end with their time, or with the key.

    They hold for every process that knows the key, so a server that restarts keeps its pages.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = [key.encode() for key in keys]

    @staticmethod
    def token(key: bytes, now: float) -> str:
        """For who has shown that key."""
        until = str(int(now) + LASTS)
        return f"{until}.{_mac(key, until)}"

    def key(self, token: str, now: float) -> bytes:
        """The key that it was for; nothing, if it is no good, or no longer."""
        until, _, mac = token.partition(".")
        if not (token.isascii() and until.isdigit() and len(until) < _MAC and int(until) > now):
            return b""
        good = [secrets.compare_digest(_mac(key, until), mac) for key in self._keys]
        return self._keys[good.index(True)] if any(good) else b""


def login_of(http: HTTPConnection) -> str:
    """The login that a request of the page bears, or nothing."""
    return http.cookies.get(COOKIE, "") if PAGE_HEADER in http.headers else ""


def keep(response: Response, http: HTTPConnection, token: str) -> None:
    """Have the browser keep it, out of the reach of scripts; nothing: no longer."""
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
