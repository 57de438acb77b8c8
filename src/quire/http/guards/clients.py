"""Who sends a request: what tells clients apart, and their caches."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from starlette.types import Scope

from quire.core.errors import RequestError
from quire.core.protocol import Origin
from quire.core.protocol.checks import check_unicode
from quire.http.errors import REQUEST_ID
from quire.http.guards.keys import KEY_NAME

_TRACE_CONTEXT = (b"traceparent", b"tracestate")  # of W3C
_LONGEST_STATE = 512
_LONGEST = 256  # characters of a name or a salt, which are kept as long as a session


class Caller(NamedTuple):
    """Who sent an HTTP request.

    key: the name of its API key, where there are several; then each of them is a client.
    own_cache: only requests with the same key share a prefix cache.
    request_id: what the request goes by in headers and logs.
    origin: what those learn of it who watch the engine.
    """

    key: str | None = None
    own_cache: bool = False
    request_id: str = ""
    origin: Origin = Origin()

    @classmethod
    def of(cls, scope: Scope, *, salt_by_key: bool) -> Caller:
        state = scope.get("state", {})
        key = state.get(KEY_NAME)
        # If all requests bear the same key, they share one cache anyway.
        request_id = state.get(REQUEST_ID, "")
        return cls(key, salt_by_key and key is not None, request_id, _origin(scope, request_id))

    def client(self, user: str | None) -> str:
        """The client whose share of the engine a request takes; "" is all who give no name.

        Where there are several keys, ``user`` does not count: nobody is many clients by one key.
        """
        return self.key if self.key is not None else _checked("user", user)

    def cache_salt(self, given: str | None) -> str:
        """The engine's salt of a request that gives this one: another for each (key, salt)."""
        salt = _checked("cache_salt", given)
        if not self.own_cache:
            return salt
        # A key's name has a fixed length, and nobody outside knows it.
        return sha256(f"{self.key}{salt}".encode()).hexdigest()

    def options(
        self,
        model: Mapping[str, object],
        user: str | None = None,
        cache_salt: str | None = None,
        priority: int | None = None,
    ) -> dict[str, Any]:
        """What a prompt says beside its text: its model, whose it is, and how soon it is due."""
        given = {
            **model,
            "cache_salt": self.cache_salt(cache_salt) or None,
            "priority": priority,
            "client": self.client(user) or None,
            "origin": self.origin,
        }
        return {name: value for name, value in given.items() if value is not None}

    def may_use(self, session_client: str | None) -> bool:
        """Whether a session or a request of that client is open to this caller, who has its id.

        With several keys it belongs to the key that opened it.
        """
        return self.key is None or self.key == session_client


def _origin(scope: Scope, request_id: str) -> Origin:
    given = {name: value for name, value in scope["headers"] if name in _TRACE_CONTEXT}
    texts = (given.get(name, b"")[:_LONGEST_STATE].decode("latin-1") for name in _TRACE_CONTEXT)
    parent, state = texts
    return Origin("text_completion", request_id, parent, state if parent else "")


def _checked(field: str, text: str | None) -> str:
    if text is None:
        return ""
    if len(text) > _LONGEST:
        raise RequestError(f"{field} must have at most {_LONGEST} characters", field)
    check_unicode(field, text)
    return text
