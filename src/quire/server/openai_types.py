"""The requests of OpenAI's API that Quire serves, with vLLM's extra fields.

Any other field is refused. ``null`` always means that a field is absent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, WrapValidator, model_validator
from pydantic_core import PydanticCustomError

from quire.engine import Message, Prompt
from quire.errors import RequestError
from quire.scheduling import SamplingParams
from quire.server.errors import in_callers_words

# Fields that Quire does not have, with the values by which a client asks for nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "function_call": ("none",),
    "functions": ([],),
    "metadata": ({},),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none",),
    "tools": ([],),
}
_MOST_PROMPTS = 2048


def expecting(what: str) -> WrapValidator:
    """One complaint about a union instead of one for each of its members."""

    def validate(value: Any, handler: Any) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            raise PydanticCustomError("expected", f"must be {what}") from error

    return WrapValidator(validate)


class Strict(BaseModel):
    """A JSON object without unknown fields, whose values have the right types already."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _leave_out_absent(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {
            name: value
            for name, value in data.items()
            if value is not None and value not in _NEUTRAL.get(name, ())
        }


class StreamOptions(Strict):
    include_usage: bool = False


class GenerationRequest(Strict):
    """The fields that completions and chats have in common.

    Those named as in SamplingParams mean what they mean there; absent, they are as the model's
    generation config says, or as there.
    """

    model: str
    user: str | None = None  # an end-user, by OpenAI's definition
    stream: bool = False
    stream_options: StreamOptions | None = None
    include_metrics: bool = False  # Quire's own: what the request cost in memory and time

    cache_salt: str | None = None
    priority: int | None = None

    n: int | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    beam_width: int | None = None
    num_return_sequences: int | None = None
    length_penalty: float | None = None
    early_stopping: Annotated[bool | str, expecting('true, false or "never"')] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: Annotated[str | list[str], expecting("a string or a list of strings")] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_unicode(cls, data: Any) -> Any:
        # JSON can spell half a character ("\\ud800"), which no tokenizer and no answer can hold.
        for name, value in data.items() if isinstance(data, dict) else ():
            try:
                json.dumps({name: value}, ensure_ascii=False).encode()
            except UnicodeEncodeError:
                shown = ascii(name)[1:-1]
                raise RequestError(f"{shown} holds invalid Unicode", shown) from None
        return data

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

    @property
    def client(self) -> str:
        """Who is served: under the fair policy, clients share."""
        return self.user or ""

    def with_options(self, prompt: str | list[int]) -> Prompt:
        """A prompt, together with what the request says about its place in line and in memory."""
        options = {
            "cache_salt": self.cache_salt,
            "priority": self.priority,
            "client": self.client or None,
        }
        given = {name: value for name, value in options.items() if value is not None}
        if not given:
            return prompt
        return {"prompt" if isinstance(prompt, str) else "prompt_token_ids": prompt, **given}

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def field_names(self) -> Mapping[str, str]:
        """The engine's names of fields that are called otherwise here."""
        return {"client": "user"}

    def _sampling_params(self, defaults: Mapping[str, Any], **others: Any) -> SamplingParams:
        """SamplingParams of the fields that go by its names, and of ``others`` in their place."""
        if self.logit_bias is not None:
            others["logit_bias"] = {_token_id(key): bias for key, bias in self.logit_bias.items()}
        here = {field.name: getattr(self, field.name, None) for field in fields(SamplingParams)}
        given = {name: value for name, value in here.items() if value is not None}
        with in_callers_words(self.field_names):
            params = SamplingParams.over(defaults, {**given, **others})
        if self.stream and not params.use_beam_search and params.width > params.num_outputs:
            raise RequestError("best_of above n cannot be streamed", "best_of")
        return params


class CompletionRequest(GenerationRequest):
    """The body of POST /v1/completions."""

    prompt: Annotated[
        str | list[str] | list[int] | list[list[int]],
        expecting("a string, a list of strings, a list of token ids or a list of such lists"),
    ]
    echo: bool = False
    logprobs: int | None = None

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
            raise RequestError(f"a request may hold at most {_MOST_PROMPTS} prompts", "prompt")
        return list(prompts)

    def sampling_params(self, defaults: Mapping[str, Any]) -> SamplingParams:
        if self.echo and self.logprobs is not None:  # the prompt's tokens have logprobs too
            return self._sampling_params(
                defaults, prompt_logprobs=max(self.logprobs, self.prompt_logprobs or 0)
            )
        return self._sampling_params(defaults)


class TextPart(Strict):
    type: Literal["text"]
    text: str


class ChatMessage(Strict):
    """One turn of a conversation. What its fields do is up to the model's chat template."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | list[TextPart], expecting("a string or a list of parts of type text")]
    name: str | None = None
    tool_call_id: str | None = None

    def for_template(self) -> Message:
        message: dict[str, Any] = self.model_dump(exclude_none=True)
        if not isinstance(self.content, str):
            message["content"] = "\n".join(part.text for part in self.content)
        return message


class ChatRequest(GenerationRequest):
    """The body of POST /v1/chat/completions."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None

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
        names = {"prompt": "messages", "logprobs": "top_logprobs", "client": "user"}
        if self.max_tokens is None:
            names["max_tokens"] = "max_completion_tokens"
        return names

    def sampling_params(self, defaults: Mapping[str, Any]) -> SamplingParams:
        longest = self.max_completion_tokens
        return self._sampling_params(
            defaults,
            max_tokens=self.max_tokens if longest is None else longest,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
        )


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) < 20):
        raise RequestError(f"logit_bias must map token ids to biases, got {key!r}", "logit_bias")
    return int(key)
