"""What answers hold, as /docs and /openapi.json tell it. Nothing is made from these types."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

FinishReason = Literal["stop", "length", "abort", "error", "tool_calls"]


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ErrorBody(_Answer):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(_Answer):
    """Why a request could not be served; ``param`` is the field at fault."""

    error: ErrorBody


class PerfettoTrace(_Answer):
    """In Chromium's Trace Event Format, as Perfetto reads it."""

    traceEvents: list[dict[str, Any]]
    displayTimeUnit: str
    otherData: dict[str, str]


class PromptTokensDetails(_Answer):
    cached_tokens: int


class CompletionTokensDetails(_Answer):
    reasoning_tokens: int | None = None
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None


class Usage(_Answer):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None


class _Whole(_Answer):
    """What whole answers have in common."""

    id: str
    created: int
    model: str
    usage: Usage
    warnings: list[str] = []
    metrics: list[dict[str, Any]] | None
    kv_transfer_params: dict[str, Any] | None
    ec_transfer_params: None
    service_tier: None


class _Piece(_Answer):
    """What chunks have in common."""

    id: str
    created: int
    model: str
    usage: Usage | None = None
    warnings: list[str] = []
    metrics: list[dict[str, Any]] | None = None
    prompt_token_ids: list[int] | None = None


class _Choice(_Answer):
    index: int
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    token_ids: list[int] | None


# -- completions -------------------------------------------------------------------------------


class CompletionLogprobs(_Answer):
    """Parallel lists, an entry for each token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChunkChoice(_Choice):
    text: str
    logprobs: CompletionLogprobs | None
    prompt_token_ids: list[int] | None


class CompletionChoice(CompletionChunkChoice):
    prompt_logprobs: list[dict[str, Any] | None] | None
    routed_experts: None


class Completion(_Whole):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class CompletionChunk(_Piece):
    object: Literal["text_completion"]
    choices: list[CompletionChunkChoice]


# -- chats -------------------------------------------------------------------------------------


class TopLogprob(_Answer):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(_Answer):
    content: list[TokenLogprob]
    refusal: None = None


class AnswerMessage(_Answer):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    audio: None
    reasoning: str | None
    reasoning_content: str | None
    tool_calls: list[dict[str, Any]] | None = None


class MessageDelta(_Answer):
    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class ChatChoice(_Choice):
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    routed_experts: None


class ChatChunkChoice(_Choice):
    delta: MessageDelta
    logprobs: ChatLogprobs | None


class ChatCompletion(_Whole):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    prompt_logprobs: list[dict[str, Any] | None] | None
    prompt_token_ids: list[int] | None
    prompt_text: None


class ChatCompletionChunk(_Piece):
    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]


# -- what is there -----------------------------------------------------------------------------


class ModelCard(_Answer):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int | None
    permission: list[Any]


class ModelList(_Answer):
    object: Literal["list"]
    data: list[ModelCard]


class Load(_Answer):
    server_load: int


class Version(_Answer):
    version: str


class SoftCutCard(_Answer):
    position: int
    bias: float | Literal["-inf"]
    fade: int


class SessionCard(_Answer):
    id: str
    object: Literal["session"]
    cache_epoch: int
    num_tokens: int
    num_input_tokens: int
    busy: bool
    soft_cuts: list[SoftCutCard]


class SessionWithEvents(SessionCard):
    events: list[dict[str, Any]]


class SessionList(_Answer):
    object: Literal["list"]
    data: list[SessionCard]


class ClosedSession(_Answer):
    id: str
    object: Literal["session"]
    deleted: Literal[True]
