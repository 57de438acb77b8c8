"""A server by its address: requests to it, and what is wrong when it refuses."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from quire.core.errors import ConfigError, EngineError, RequestError
from quire.tools.terminal.models import ContextFullError

_CONNECTIONS = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
_MOST_OF_A_REASON = 300  # characters of an error that is not in OpenAI's shape

# How servers say that a conversation is too long; few have a code for it.
_TOO_LONG = re.compile(
    r"context_length_exceeded|exceed_context_size|context (length|size|window)|max_model_len"
    r"|must (come to|have) at most",
    re.IGNORECASE,
)


class Address:
    """patience: seconds without a byte."""

    def __init__(self, url: str, api_key: str | None = None, patience: float = 600.0) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in _CONNECTIONS or not parts.hostname or port == -1:
            raise ConfigError(f"url must be like http://host:port, got {url!r}")
        self._address = _CONNECTIONS[parts.scheme], parts.hostname, port
        self.url, self._base = url, parts.path.rstrip("/").removesuffix("/v1")
        self._patience = patience
        self._headers = {"content-type": "application/json"}
        if api_key is not None:
            self._headers["authorization"] = f"Bearer {api_key}"

    @contextlib.contextmanager
    def send(self, method: str, path: str, body: Any = None) -> Iterator[http.client.HTTPResponse]:
        """A reply of status 200. Leaving it hangs up, which stops what the server was at.

        Raises:
            EngineError: there is no answer, or the server has failed.
            RequestError: it refuses the request.
        """
        connect, host, port = self._address
        connection = connect(host, port, timeout=self._patience)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, self._base + path, data, self._headers)
            reply = connection.getresponse()
            if reply.status != 200:
                raise _refusal(reply.status, reply.read().decode(errors="replace"))
            yield reply
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or error or type(error).__name__
            raise EngineError(f"{self.url} does not answer: {reason}") from error
        finally:
            connection.close()


def _refusal(status: int, text: str) -> RequestError | EngineError | ConfigError:
    try:
        message = error_message(json.loads(text))
    except (ValueError, TypeError, KeyError):
        message = " ".join(text.split())[:_MOST_OF_A_REASON] or "no reason given"
    if status in (401, 403):
        return ConfigError(f"the server asks for an api_key: {message}")
    if status == 400 and _TOO_LONG.search(text):
        return ContextFullError(message, "messages")
    if status in (429, 503):
        return EngineError(f"the server is busy ({status}): {message}")
    if status >= 500:
        return EngineError(f"the server has failed ({status}): {message}")
    return RequestError(f"the server refuses ({status}): {message}", "messages")


def error_message(value: dict[str, Any]) -> str:
    """The message in an error body of OpenAI's form."""
    error = value["error"]
    return str(error["message"] if isinstance(error, dict) else error)
