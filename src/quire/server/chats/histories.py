"""Messages as callers keep them, put as chat templates want them."""

from __future__ import annotations

import hashlib
import json
import string
from collections.abc import Mapping, Sequence
from typing import Any

from quire.engine import Message

_DIGITS = string.digits + string.ascii_letters


def for_template(messages: Sequence[Message], id_length: int | None) -> list[Message]:
    """Messages in OpenAI's form, with arguments as objects and content as a text.

    id_length: characters that the template wants a call's id to have; others are shortened, the
    same to the same.
    """
    return [_message(message, id_length) for message in messages]


def _message(message: Message, id_length: int | None) -> Message:
    put = {**message, "content": message.get("content") or ""}
    if message.get("tool_calls"):
        put["tool_calls"] = [_call(call, id_length) for call in message["tool_calls"]]
    if id_length is not None and message.get("tool_call_id"):
        put["tool_call_id"] = _shortened(message["tool_call_id"], id_length)
    reasoning = message.get("reasoning_content")
    if reasoning:  # templates call it the one or the other
        put["reasoning"] = reasoning
    return put


def _call(call: Mapping[str, Any], id_length: int | None) -> Mapping[str, Any]:
    function = call["function"]
    put = {**call, "function": {**function, "arguments": _arguments(function["arguments"])}}
    if id_length is not None and call.get("id"):
        put["id"] = _shortened(call["id"], id_length)
    return put


class _Arguments(dict[str, Any]):
    """A call's, as an object; where a template puts it into a text, its JSON."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)

    def __add__(self, after: str) -> str:
        return str(self) + after

    def __radd__(self, before: str) -> str:
        return before + str(self)


def _arguments(given: object) -> object:
    """An object, if it is the JSON of one; broken arguments stay as the model wrote them."""
    value = given
    if isinstance(given, str):
        try:
            value = json.loads(given or "{}")
        except (ValueError, RecursionError):
            return given
    return _Arguments(value) if isinstance(value, dict) else given


def _shortened(id: str, length: int) -> str:
    if len(id) == length and id.isascii() and id.isalnum():
        return id
    number = int.from_bytes(hashlib.sha256(id.encode()).digest(), "big")
    return "".join(_DIGITS[number // len(_DIGITS) ** i % len(_DIGITS)] for i in range(length))
