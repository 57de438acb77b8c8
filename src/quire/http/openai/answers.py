"""The answers of OpenAI's completions and chats, whole and in chunks.

Fields that vLLM always sends are null where Quire has nothing to say in them: clients read them as
attributes. What OpenAI's own schema allows no null for is left out instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from quire.http.answers.logprobs import ChatLogprobs, CompletionLogprobs
from quire.http.answers.rendering import Answer, Many

_REASONS = ["stop", "length", "abort", "error", "tool_calls"]
FinishReason = Annotated[str, Meta(extra_json_schema={"enum": _REASONS})]


class PromptTokensDetails(Answer):
    cached_tokens: int


class CompletionTokensDetails(Answer):
    reasoning_tokens: int | UnsetType = UNSET
    accepted_prediction_tokens: int | UnsetType = UNSET
    rejected_prediction_tokens: int | UnsetType = UNSET


class CompletionUsage(Answer):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | UnsetType = UNSET
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class _Whole(Answer, kw_only=True):
    """What whole answers begin with."""

    id: str
    created: int
    model: str
    object: str
    service_tier: None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: None = None
    metrics: list[dict[str, Any]] | None = None


class _Chunk(Answer, kw_only=True):
    """What chunks have in common. ``prompt_token_ids`` is null in the first one of a chat."""

    id: str
    created: int
    model: str
    object: str
    choices: Sequence[Any]
    usage: CompletionUsage | UnsetType | None = UNSET
    metrics: list[dict[str, Any]] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET
    prompt_token_ids: Sequence[int] | UnsetType | None = UNSET


# -- completions -------------------------------------------------------------------------------


class CompletionChunkChoice(Answer):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    prompt_token_ids: Sequence[int] | None = None
    token_ids: Sequence[int] | None = None


class CompletionChoice(Answer):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    token_ids: Sequence[int] | None = None
    prompt_token_ids: Sequence[int] | None = None
    prompt_logprobs: Many[dict[str, Any] | None] | None = None
    routed_experts: None = None


class Completion(_Whole, kw_only=True):
    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]
    usage: CompletionUsage
    warnings: list[str] | UnsetType = UNSET


class CompletionChunk(_Chunk, kw_only=True):
    object: Literal["text_completion"] = "text_completion"
    choices: Sequence[CompletionChunkChoice]


# -- chats -------------------------------------------------------------------------------------


class MessageCallFunction(Answer, kw_only=True):
    name: str | UnsetType = UNSET
    arguments: str


class MessageCall(Answer, kw_only=True):
    """In a stream its first chunk has all but the arguments, and the others have those alone."""

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: MessageCallFunction


class AnswerMessage(Answer, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    audio: None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[MessageCall] | UnsetType = UNSET


class MessageDelta(Answer):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[MessageCall] | UnsetType = UNSET


class ChatChoice(Answer):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    token_ids: Sequence[int] | None = None
    routed_experts: None = None


class ChatChunkChoice(Answer):
    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    token_ids: Sequence[int] | None = None


class ChatCompletion(_Whole, kw_only=True):
    object: Literal["chat.completion"] = "chat.completion"
    prompt_logprobs: Many[dict[str, Any] | None] | None = None
    prompt_token_ids: Sequence[int] | None = None
    prompt_text: None = None
    choices: list[ChatChoice]
    usage: CompletionUsage
    warnings: list[str] | UnsetType = UNSET


class ChatCompletionChunk(_Chunk, kw_only=True):
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: Sequence[ChatChunkChoice]
