"""The bodies of POST /tokenize and /detokenize: vLLM's and llama.cpp's, told apart by fields."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from quire.core.errors import RequestError
from quire.http.fields.strict import Ids, Strict, at_most, no_deeper
from quire.http.openai.messages import ChatMessage, Tools

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
    tools: Tools | None = None  # from here on a conversation's
    chat_template_kwargs: Annotated[dict[str, Any], no_deeper(16, 4096)] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    content: str | None = None  # llama.cpp's, and so are these
    add_special: bool = False
    with_pieces: bool = False
    parse_special: Literal[True] = True  # the tokenizer's names for special tokens are just that

    @model_validator(mode="after")
    def _check(self) -> TokenizeRequest:
        given = [name for name in _PROMPTS if getattr(self, name) is not None]
        if len(given) != 1:
            raise RequestError(f"one of {', '.join(_PROMPTS)} must be given", "prompt")
        if self.continue_final_message and "add_generation_prompt" not in self.model_fields_set:
            self.add_generation_prompt = False
        return self

    @property
    def rendering(self) -> dict[str, bool]:
        """What the chat template's rendering is told."""
        return {
            "add_generation_prompt": self.add_generation_prompt,
            **({"continue_final_message": True} if self.continue_final_message else {}),
        }


class DetokenizeRequest(Strict):
    model: str | None = None
    tokens: Ids
