"""What a chat template tells of the model's calls and thoughts, where it is all that there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.text.chat_template import ChatTemplate
from quire.text.dialect import Dialect, Marks, dialect_of, marks_of
from quire.text.dialect.proof import Render

_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def rendering(source: str) -> Render:
    template = ChatTemplate(source, _TOKENS)

    def render(messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
        return template.render(messages, variables, 1e6)

    return render


def dialect_in(source: str) -> Dialect | None:
    return dialect_of(source, rendering(source))


def marks_in(source: str) -> Marks | None:
    return marks_of(source, rendering(source))
