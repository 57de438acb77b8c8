"""A model on a server that speaks OpenAI's API."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quire.core.errors import ConfigError, EngineError, RequestError
from quire.tools.terminal.address import Address, error_message
from quire.tools.terminal.conversation import Message
from quire.tools.terminal.models import Answer, ContextFullError, Ending, Piece


class RemoteModel:
    """A ``ChatModel``: the model ``name`` of a server, by default the first that it lists."""

    def __init__(self, url: str, name: str | None = None, api_key: str | None = None) -> None:
        self._address = Address(url, api_key)
        self._url = url
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
            with self._address.send("POST", "/tokenize", body) as reply:
                return self.max_model_len - int(json.load(reply)["count"])
        except ContextFullError:
            return 0
        except (RequestError, ValueError, KeyError, TypeError):
            self._counts_tokens = False
            return None

    def answer(self, messages: Sequence[Message], params: Mapping[str, Any]) -> Answer:
        given = {name: value for name, value in params.items() if value is not None}
        body = {
            "model": self.name, "messages": messages, **given,
            "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        finish_reason = None
        usage: dict[str, int] = {}
        with self._address.send("POST", "/v1/chat/completions", body) as reply:
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
        """The server's facts about its model."""
        with self._address.send("GET", "/v1/models") as reply:
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
                raise EngineError(
                    f"the server sent a line that is not an event: {data[:80]!r}"
                ) from error
            if "error" in value:
                raise EngineError(
                    f"the server ended its answer with an error: {error_message(value)}"
                )
            yield value
    raise EngineError("the connection ended in the middle of the answer")
