"""The requests of OpenAI's API that Quire serves, with vLLM's extra fields.

Any other field is refused. ``null`` always means that a field is absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any

from pydantic import Field, model_validator

from quire.engine import Prompt
from quire.engine.input_processor import MAX_PRIORITY
from quire.errors import RequestError
from quire.protocol import SamplingParams
from quire.server.errors import in_callers_words
from quire.server.fields import (
    Ids,
    Name,
    Strict,
    Texts,
    at_most,
    between,
    expecting,
    no_deeper,
)
from quire.server.guards.clients import Caller
from quire.server.message_types import ChatMessage, ToolFields
from quire.server.structured import StructuredFields

_MOST_PROMPTS = 2048
_MOST_MESSAGES = 4096
_MOST_TEMPLATE_VALUES, _MOST_TEMPLATE_LEVELS = 4096, 16


class StreamOptions(Strict):
    include_usage: bool = False


class GenerationRequest(StructuredFields):
    """The fields that completions and chats have in common, SamplingParams' among them."""

    model: str
    user: Name | None = None  # an end-user, by OpenAI's definition
    stream: bool = False
    stream_options: StreamOptions | None = None
    include_metrics: bool = False  # Quire's own: what the request cost in memory and time

    cache_salt: Name | None = None
    priority: Annotated[int, between(-MAX_PRIORITY, MAX_PRIORITY)] | None = None

    @model_validator(mode="after")
    def _check_stream(self) -> GenerationRequest:
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options needs stream: true", "stream_options")
        if self.stream and self.include_metrics and not self.include_usage:
            raise RequestError(
                "in a stream, include_metrics needs stream_options.include_usage: true",
                "include_metrics",
            )
        if self.stream and self.prompt_logprobs is not None:
            raise RequestError("prompt_logprobs cannot be streamed", "prompt_logprobs")
        return self

    def with_options(self, prompt: str | list[int], caller: Caller) -> Prompt:
        """A prompt, together with what the request says about its place in line and in memory."""
        options = self.options(caller)
        if not options:
            return prompt
        return {"prompt" if isinstance(prompt, str) else "prompt_token_ids": prompt, **options}

    def options(self, caller: Caller) -> dict[str, Any]:
        salt = caller.cache_salt(self.cache_salt)
        options = {
            "cache_salt": salt or None,
            "priority": self.priority,
            "client": caller.client(self.user) or None,
        }
        return {name: value for name, value in options.items() if value is not None}

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def field_names(self) -> Mapping[str, str]:
        """The engine's names of fields that are called otherwise here."""
        return {"client": "user", "structured_outputs": self.structure_field}

    def _sampling_params(self, defaults: Mapping[str, Any], **others: Any) -> SamplingParams:
        """SamplingParams of the fields that go by its names, and of ``others`` in their place."""
        here = {field.name: getattr(self, field.name, None) for field in fields(SamplingParams)}
        with in_callers_words(self.field_names):
            here["structured_outputs"] = self.asked_structure()
            given = {name: value for name, value in here.items() if value is not None}
            params = SamplingParams.over(defaults, {**given, **others})
        if self.stream and not params.use_beam_search and params.width > params.num_outputs:
            raise RequestError("best_of above n cannot be streamed", "best_of")
        return params


class CompletionRequest(GenerationRequest):
    """The body of POST /v1/completions."""

    prompt: Annotated[
        str | Texts | Ids | Annotated[list[Ids], Field(fail_fast=True)],
        expecting("a string, a list of strings, a list of token ids or a list of such lists"),
    ]
    echo: bool = False

    @model_validator(mode="after")
    def _check(self) -> CompletionRequest:
        if not self.prompt:
            raise RequestError("prompt must not be empty", "prompt")
        if self.stream and self.echo and self.logprobs is not None:
            raise RequestError("echo with logprobs cannot be streamed", "echo")
        return self

    def prompts(self) -> list[str | list[int]]:
        prompt: Any = self.prompt
        prompts = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
        if len(prompts) > _MOST_PROMPTS:
            raise RequestError(f"a request may hold at most {_MOST_PROMPTS:,} prompts", "prompt")
        return list(prompts)

    def sampling_params(self, defaults: Mapping[str, Any]) -> SamplingParams:
        if self.echo and self.logprobs is not None:  # the prompt's tokens have logprobs too
            return self._sampling_params(
                defaults, prompt_logprobs=max(self.logprobs, self.prompt_logprobs or 0)
            )
        return self._sampling_params(defaults)


class ChatRequest(GenerationRequest, ToolFields):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[
        list[ChatMessage], Field(fail_fast=True), at_most(_MOST_MESSAGES, "messages")
    ]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    chat_template_kwargs: (
        Annotated[dict[str, Any], no_deeper(_MOST_TEMPLATE_LEVELS, _MOST_TEMPLATE_VALUES)] | None
    ) = None

    @model_validator(mode="after")
    def _check(self) -> ChatRequest:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise RequestError(
                "max_tokens is the old name of max_completion_tokens: give one", "max_tokens"
            )
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs: true", "top_logprobs")
        return self

    @property
    def field_names(self) -> Mapping[str, str]:
        names = {"prompt": "messages", "logprobs": "top_logprobs", **super().field_names}
        if self.max_tokens is None:
            names["max_tokens"] = "max_completion_tokens"
        return names

    def sampling_params(self, defaults: Mapping[str, Any]) -> SamplingParams:
        longest = self.max_completion_tokens
        return self._sampling_params(
            defaults,
            max_tokens=self.max_tokens if longest is None else longest,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            thinking_token_budget=(
                self.thinking_budget
                if self.thinking_token_budget is None
                else self.thinking_token_budget
            ),
        )
