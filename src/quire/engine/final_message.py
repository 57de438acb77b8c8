"""A conversation whose last message is to be gone on with, not answered.

As in transformers: the message is marked before the template sees it, and the text cut at the mark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.errors import RequestError

_MARK = "CONTINUE_FINAL_MESSAGE_TAG "
_FIELD = "continue_final_message"


def marked(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages with a mark at the end of the last one's text."""
    *others, last = messages
    content = last.get("content")
    if isinstance(content, list) and content and isinstance(content[-1].get("text"), str):
        *parts, end = content
        return [*others, {**last, "content": [*parts, {**end, "text": end["text"] + _MARK}]}]
    if not isinstance(content, str):
        raise RequestError(f"{_FIELD} needs a last message that is a text", _FIELD)
    return [*others, {**last, "content": content + _MARK}]


def cut_at_mark(text: str) -> str:
    """What the template made of them, up to the end of the last message."""
    end = text.rfind(_MARK.strip())
    if end < 0:
        raise RequestError(f"the model's chat template leaves out the message to go on: {_FIELD}",
                           _FIELD)  # fmt: skip
    trimmed = not text.startswith(_MARK, end)  # then the template trims messages
    return text[:end].rstrip() if trimmed else text[:end]
