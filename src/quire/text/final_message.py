"""A conversation whose last message is to be gone on with, not answered.

As in transformers: the message is marked before the template sees it, and the text cut at the mark.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from quire.core.errors import RequestError

FIELD = "continue_final_message"


def new_mark() -> str:
    """A text that occurs nowhere else, and that templates leave as it is."""
    return f"MARK{secrets.token_hex(8)}"


def last_text(message: Mapping[str, Any]) -> str | None:
    """The text that a message ends in, if there is one."""
    content = message.get("content")
    if isinstance(content, list) and content and isinstance(content[-1], Mapping):
        content = content[-1].get("text")
    return content if isinstance(content, str) else None


def lengthened(message: Mapping[str, Any], addition: str) -> Mapping[str, Any]:
    """The message with more at the end of its text, which there must be."""
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": content + addition}
    *parts, end = content
    return {**message, "content": [*parts, {**end, "text": end["text"] + addition}]}


class FinalMessage:
    """The last of some messages. RequestError if it is no text.

    marked: the messages as the template is to see them.
    """

    def __init__(self, messages: Sequence[Mapping[str, Any]]) -> None:
        *others, last = messages
        said = last_text(last)
        if said is None:
            raise RequestError(f"{FIELD} needs a last message that is a text", FIELD)
        self._said = said
        self._mark = new_mark()
        self.marked = [*others, lengthened(last, self._mark + " ")]

    def cut(self, text: str) -> str:
        """The prompt, up to the end of the last message."""
        end = text.rfind(self._mark)
        if end < 0:
            raise RequestError(
                f"the model's chat template leaves out the message to go on: {FIELD}", FIELD
            )
        before, after = text[:end], text[end + len(self._mark) :]
        if after.startswith(" ") or not self._said.strip():  # then it is the template's own end
            return before
        return before.rstrip()  # the template trims messages
