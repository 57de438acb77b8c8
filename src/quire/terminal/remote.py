"""A model on a server that speaks OpenAI's API."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from quire.errors import ConfigError, EngineError, RequestError
from quire.terminal.conversation import Message
from quire.terminal.models import Answer, ContextFullError, Ending, Piece

_CONNECTIONS = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
_PATIENCE = 600.0  # seconds without a byte
_MOST_OF_A_REASON = 300  # characters of an error that is not in OpenAI's shape

# How servers say that a conversation is too long; few have a code for it.
_TOO_LONG = re.compile(
    r"context_length_exceeded|exceed_context_size|context (length|size|window)|max_model_len"
    r"|must (come to|have) at most",
    re.IGNORECASE,
)


class RemoteModel:
    """The model ``name`` of the server at ``url``; by default the first that it lists."""

    def __init__(self, url: str, name: str | None = None, api_key: str | None = None) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in _CONNECTIONS or not parts.hostname or port == -1:
            raise ConfigError(f"url must be like http://host:port, got {url!r}")
        self._address = _CONNECTIONS[parts.scheme], parts.hostname, port
        self._url, self._base = url, parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"content-type": "application/json"}
        if api_key is not None:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._counts_tokens = True  # until it turns out otherwise
        card = self._card(name)
        self.name: str = card["id"]
        self.max_model_len: int | None = card.get("max_model_len")

    def room(self, messages: Sequence[Message]) -> int | None:
        """See ``ChatModel.room``; known of servers that have vLLM's ``/tokenize``."""
        if self.max_model_len is None or not self._counts_tokens:
            return None
        body = {"model": self.name, "messages": messages}
        try:
            with self._send("POST", "/tokenize", body) as reply:
                return self.max_model_len - int(json.load(reply)["count"])
        except ContextFullError:
            return 0
        except (RequestError, ValueError, KeyError, TypeError):
            self._counts_tokens = False
            return None

    def answer(self, messages: Sequence[Message], params: Mapping[str, Any]) -> Answer:
        """See ``ChatModel.answer``."""
        given = {name: value for name, value in params.items() if value is not None}
        body = {
            "model": self.name, "messages": messages, **given,
            "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        finish_reason = None
        usage: dict[str, int] = {}
        with self._send("POST", "/v1/chat/completions", body) as reply:
            for event in _events(reply):
                usage = event.get("usage") or usage
                for choice in event.get("choices") or ():
                    finish_reason = choice.get("finish_reason") or finish_reason
                    delta = choice.get("delta") or {}
                    reasoning = delta.get("reasoning") or delta.get("reasoning_content") or ""
                    yield Piece(delta.get("content") or "", reasoning)
        tokens = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
        yield Piece(ending=Ending(finish_reason, *tokens))

    def _card(self, name: str | None) -> dict[str, Any]:
        """What the server says about its model."""
        with self._send("GET", "/v1/models") as reply:
            text = reply.read()
        try:
            cards = json.loads(text)["data"]
            names = [str(card["id"]) for card in cards]
            found: dict[str, Any] = next(card for card in cards if name in (None, card["id"]))
        except StopIteration:
            raise ConfigError(
                f"{self._url} has no model {name}; it has {', '.join(names) or 'none'}"
            ) from None
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{self._url} does not list models as OpenAI's API does") from error
        return found

    @contextlib.contextmanager
    def _send(self, method: str, path: str, body: Any = None) -> Iterator[http.client.HTTPResponse]:
        """A reply of status 200. Leaving it hangs up, which stops what the server was at.

        Raises:
            EngineError: there is no answer, or the server has failed.
            RequestError: it refuses the request.
        """
        connect, host, port = self._address
        connection = connect(host, port, timeout=_PATIENCE)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, self._base + path, data, self._headers)
            reply = connection.getresponse()
            if reply.status != 200:
                raise _refusal(reply.status, reply.read().decode(errors="replace"))
            yield reply
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or error or type(error).__name__
            raise EngineError(f"{self._url} does not answer: {reason}") from error
        finally:
            connection.close()


def _events(reply: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The values of a stream of server-sent events, up to its [DONE]."""
    for line in reply:
        data = line.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            return
        if line.startswith(b"data:"):
            try:
                value = json.loads(data)
            except ValueError as error:
                raise EngineError(f"the server sent what is no event: {data[:80]!r}") from error
            if "error" in value:
                raise EngineError(f"the server broke off: {_message(value)}")
            yield value
    raise EngineError("the server broke off in the middle of its answer")


def _refusal(status: int, text: str) -> RequestError | EngineError | ConfigError:
    try:
        message = _message(json.loads(text))
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


def _message(value: dict[str, Any]) -> str:
    error = value["error"]
    return str(error["message"] if isinstance(error, dict) else error)
