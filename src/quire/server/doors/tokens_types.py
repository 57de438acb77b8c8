"""The bodies of POST /tokenize and /detokenize: vLLM's and llama.cpp's, told apart by fields."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from quire.errors import RequestError
from quire.server.fields import Ids, Strict, at_most, no_deeper
from quire.server.message_types import ChatMessage

_PROMPTS = ("prompt", "messages", "content")


class TokenizeRequest(Strict):
    """A text or a conversation as vLLM's clients send them, or a text as llama.cpp's do."""

    model: str | None = None
    prompt: str | None = None
    messages: (
        Annotated[list[ChatMessage], Field(fail_fast=True), at_most(4096, "messages")] | None
    ) = None
    add_special_tokens: bool | None = None  # a conversation's template writes them itself
    return_token_strs: bool = False
    chat_template_kwargs: Annotated[dict[str, Any], no_deeper(16, 4096)] | None = None

    content: str | None = None  # llama.cpp's, and so are these
    add_special: bool = False
    with_pieces: bool = False

    @model_validator(mode="after")
    def _check(self) -> TokenizeRequest:
        given = [name for name in _PROMPTS if getattr(self, name) is not None]
        if len(given) != 1:
            raise RequestError(f"one of {', '.join(_PROMPTS)} must be given", "prompt")
        return self


class DetokenizeRequest(Strict):
    model: str | None = None
    tokens: Ids
