"""What the doors' answers hold, as /docs and /openapi.json tell it. Nothing is made from these."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Event(BaseModel):
    model_config = ConfigDict(extra="allow")


# -- tokens ------------------------------------------------------------------------------------


class Tokenized(_Answer):
    """To a prompt or messages; to llama.cpp's content, ``tokens`` alone, with pieces if asked."""

    tokens: list[int | dict[str, Any]]
    count: int | None = None
    max_model_len: int | None = None
    token_strs: list[str] | None = None


class Detokenized(_Answer):
    """The same text by vLLM's name and by llama.cpp's."""

    prompt: str
    content: str


# -- OpenAI's responses ------------------------------------------------------------------------


class ResponseAnswer(_Answer):
    """A response; what it repeats of its request is as it was given, or as it is left out."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete"]
    error: None
    incomplete_details: dict[str, str] | None
    output: list[dict[str, Any]]
    usage: dict[str, Any] = {}
    model: str
    instructions: str | None
    previous_response_id: str | None
    store: bool
    tools: list[dict[str, Any]]
    tool_choice: str | dict[str, Any]
    parallel_tool_calls: bool
    max_tool_calls: int | None
    text: dict[str, Any]
    reasoning: dict[str, Any]
    max_output_tokens: int | None
    temperature: float
    top_p: float
    top_logprobs: int
    truncation: str
    background: bool
    metadata: dict[str, str]
    prompt_cache_key: str | None
    safety_identifier: str | None
    service_tier: str
    user: str = ""
    presence_penalty: float
    frequency_penalty: float
    prompt: None
    input_messages: None
    output_messages: None
    kv_transfer_params: None
    ec_transfer_params: None
    warnings: list[str] = []


class ResponseEvent(_Event):
    """One of a stream's events, of OpenAI's types, from response.created to the last."""

    type: str
    sequence_number: int


class InputItems(_Answer):
    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class CountedInput(_Answer):
    object: Literal["response.input_tokens"]
    input_tokens: int


class DeletedResponse(_Answer):
    id: str
    object: Literal["response"]
    deleted: bool


# -- Anthropic's messages ----------------------------------------------------------------------


class AnthropicErrorAnswer(_Answer):
    type: Literal["error"]
    error: dict[str, str]


class MessageAnswer(_Answer):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"] | None
    stop_sequence: str | None
    usage: dict[str, Any]


class MessageEvent(_Event):
    """One of a stream's events, of Anthropic's types, from message_start to message_stop."""

    type: str


class CountedTokens(_Answer):
    input_tokens: int


# -- Ollama's ----------------------------------------------------------------------------------


class OllamaErrorAnswer(_Answer):
    error: str


class _Ending(_Answer):
    """The last line of a stream has all of it; a whole answer too."""

    model: str
    created_at: str
    done: bool
    logprobs: list[dict[str, Any]] | None = None
    done_reason: str | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None


class GeneratedAnswer(_Ending):
    response: str
    thinking: str | None = None


class OllamaChatAnswer(_Ending):
    message: dict[str, Any]


class OllamaVersion(_Answer):
    version: str
    quire: str


class OllamaModels(_Answer):
    models: list[dict[str, Any]]


class ShownModel(_Answer):
    modelfile: str
    parameters: str
    template: str
    details: dict[str, Any]
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


# -- llama.cpp's -------------------------------------------------------------------------------


class LlamaCppErrorAnswer(_Answer):
    error: dict[str, Any]


class LlamaCppAnswer(_Answer):
    """An answer, or an event of a stream, whose last one has all of it."""

    index: int
    content: str
    tokens: list[int]
    stop: bool
    id_slot: int
    model: str | None = None
    tokens_predicted: int | None = None
    tokens_evaluated: int | None = None
    tokens_cached: int | None = None
    generation_settings: dict[str, Any] | None = None
    prompt: str | None = None
    truncated: bool | None = None
    stop_type: Literal["eos", "limit", "word"] | None = None
    stopping_word: str | None = None
    timings: dict[str, float | None] | None = None
    completion_probabilities: list[dict[str, Any]] | None = None


class Props(_Answer):
    default_generation_settings: dict[str, Any]
    total_slots: int
    model_alias: str
    model_path: str
    chat_template: str
    modalities: dict[str, bool]
    build_info: str
    is_sleeping: bool


class Slot(_Answer):
    id: int
    n_ctx: int | None
    speculative: bool
    is_processing: bool


STREAMED: tuple[type[BaseModel], ...] = (ResponseEvent, MessageEvent)
"""Types that only streams give."""
