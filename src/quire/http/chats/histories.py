"""Messages as callers keep them, put as chat templates want them."""

from __future__ import annotations

import hashlib
import json
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quire.text.chat_template import Message
from quire.text.dialect import mended

_DIGITS = string.digits + string.ascii_letters


# What chat templates call the reasoning of a message.
_NAMES = ("reasoning_content", "reasoning", "thinking", "thought")
# Some have it as a part of the content: Mistral's.
_IN_PARTS = re.compile(r"""type['"]?\]?\s*==\s*['"]thinking['"]""")
_BY_NAME = re.compile(r"reasoning_content|\.reasoning\b|\.thinking\b")
# Some take it for the content of a message with calls, or the other way round: gpt-oss's.
_ONE_OF_BOTH = "both content and thinking"
# Some know messages with calls by their having no content: DeepSeek R1's.
_CALLS_ALONE = re.compile(r"""['"]assistant['"] and message\[['"]content['"]\] is none""")


def for_template(
    messages: Sequence[Message], id_length: int | None, template: str = ""
) -> list[Message]:
    """Messages in OpenAI's form, with arguments as objects and content as a text.

    id_length: characters that the template wants a call's id to have; others are shortened, the
    same to the same.
    template: the chat template, in whose manner reasoning and calls are put.
    """
    put = [_message(message, id_length) for message in _with_ids(messages)]
    if _CALLS_ALONE.search(template):
        put = [part for message in put for part in _apart(message)]
    in_parts = _IN_PARTS.search(template) and not _BY_NAME.search(template)
    for message in put:
        reasoning = message.get("reasoning_content")
        if not reasoning:
            continue
        if _ONE_OF_BOTH in template and message.get("tool_calls") and message["content"]:
            reasoning += "\n\n" + message["content"]
            message["content"] = ""
        message.update(dict.fromkeys(_NAMES, reasoning))
        if in_parts:
            text = {"type": "text", "text": message["content"] or ""}
            message["content"] = [{"type": "thinking", "thinking": reasoning}, text]
    return [*put]


def _with_ids(messages: Sequence[Message]) -> Iterator[Message]:
    """Calls have ids, and results those of the calls that they answer.

    Ollama's clients give none, and some templates ask for them.
    """
    number = 0
    unanswered: list[str] = []
    for message in messages:
        put = {**message}
        if calls := message.get("tool_calls"):
            ids = [call.get("id") or f"call_{number + index}" for index, call in enumerate(calls)]
            put["tool_calls"] = [{**call, "id": id} for call, id in zip(calls, ids, strict=True)]
            number += len(ids)
            unanswered = ids
        elif message.get("role") == "tool" and unanswered:
            answered = message.get("tool_call_id") or unanswered[0]
            put["tool_call_id"] = answered
            unanswered = [id for id in unanswered if id != answered]
        yield put


def _message(message: Message, id_length: int | None) -> dict[str, Any]:
    put = {**message, "content": message.get("content") or ""}
    if message.get("tool_calls"):
        put["tool_calls"] = [_call(call, id_length) for call in message["tool_calls"]]
    if id_length is not None and message.get("tool_call_id"):
        put["tool_call_id"] = _shortened(message["tool_call_id"], id_length)
    return put


def _apart(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What a message says, and its calls as one that says nothing."""
    if not message.get("tool_calls"):
        yield message
        return
    if message["content"]:
        yield {key: value for key, value in message.items() if key != "tool_calls"}
        message.pop("reasoning_content", None)
    yield {**message, "content": None}


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
    """An object, if it is the JSON of one, or nearly; others stay as the model wrote them."""
    value = given
    if isinstance(given, str):
        try:
            value = json.loads(given or "{}")
        except (ValueError, RecursionError):
            value = json.loads(mended(given) or "null")
    return _Arguments(value) if isinstance(value, dict) else given


def _shortened(id: str, length: int) -> str:
    if len(id) == length and id.isascii() and id.isalnum():
        return id
    number = int.from_bytes(hashlib.sha256(id.encode()).digest(), "big")
    return "".join(_DIGITS[number // len(_DIGITS) ** i % len(_DIGITS)] for i in range(length))
