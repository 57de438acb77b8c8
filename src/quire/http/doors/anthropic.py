"""Anthropic's API: POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request
from fastapi.responses import Response
from msgspec import UNSET, UnsetType
from pydantic import BeforeValidator, Field, model_validator

from quire.core.errors import RequestError
from quire.engine.outputs import Delta
from quire.http.answers.rendering import Answer, Json, respond
from quire.http.answers.streaming import PINGED_EVENTS, Events, EventStream
from quire.http.body_fields import (
    Hosted,
    Listed,
    Strict,
    Texts,
    at_most,
    given_of,
    in_callers_words,
)
from quire.http.chats.conversation import ConversationTurn, PreparedChat, begin, called, said
from quire.http.chats.kept_prompts import Mark, mark_of
from quire.http.chats.speech import AUTO, MOST_TOOLS, Tool, ToolChoice
from quire.http.doors.turn_stream import (
    Block,
    BlockClosed,
    BlockGrown,
    BlockOpened,
    Change,
    Kind,
    TurnStream,
    going_on,
)
from quire.http.errors import UnsupportedThreadError
from quire.http.openai.requests import JsonObject
from quire.http.openapi import body_route, gives
from quire.http.service import Service
from quire.text.chat_template import Message
from quire.text.params import SamplingParams, StructuredOutputs

_MOST_MESSAGES, _MOST_BLOCKS = 4096, 1024


class Cacheable(Strict):
    """``cache_control`` is a hint of what to keep: every prompt is cached here."""

    cache_control: dict[str, Any] | None = None


class TextBlock(Cacheable):
    type: Literal["text"]
    text: str
    citations: list[Any] | None = None  # where Anthropic has found what the text says


class ThinkingBlock(Cacheable):
    type: Literal["thinking"]
    thinking: str
    signature: str = ""  # nothing is signed here, and so nothing is checked


class RedactedThinkingBlock(Cacheable):
    """Another model's secret, of which this one can make nothing."""

    type: Literal["redacted_thinking"]
    data: str = ""


class ToolUseBlock(Cacheable):
    type: Literal["tool_use"]
    id: str
    name: str
    input: JsonObject
    caller: dict[str, Any] | None = None


class HostedBlock(Hosted):
    """What Anthropic has done in a conversation begun there: what came of it is in its text."""

    what, field = "block", "messages"

    type: Literal[
        "server_tool_use", "web_search_tool_result", "web_fetch_tool_result",
        "code_execution_tool_result", "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result", "tool_search_tool_result", "mcp_tool_use",
        "mcp_tool_result",
    ]  # fmt: skip


def _as_blocks(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


_Texts = Annotated[Listed[TextBlock], at_most(_MOST_BLOCKS, "blocks"), BeforeValidator(_as_blocks)]


class ToolResultBlock(Cacheable):
    type: Literal["tool_result"]
    tool_use_id: str
    content: _Texts = Field(default_factory=list)
    is_error: bool = False


ContentBlock = Annotated[
    TextBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
    | HostedBlock,
    Field(discriminator="type"),
]


class AnthropicMessage(Strict):
    role: Literal["user", "assistant", "system"]
    content: Annotated[
        Listed[ContentBlock], at_most(_MOST_BLOCKS, "blocks"), BeforeValidator(_as_blocks)
    ]

    @model_validator(mode="after")
    def _check(self) -> AnthropicMessage:
        allowed: Any = (TextBlock, ToolResultBlock)
        if self.role == "assistant":
            allowed = TextBlock, ThinkingBlock, RedactedThinkingBlock, ToolUseBlock, HostedBlock
        for block in self.content:
            if not isinstance(block, allowed):
                raise RequestError(
                    f"a message of role {self.role} may hold no block of type {block.type}",
                    "messages",
                )
        return self


class AnthropicTool(Cacheable):
    """A tool of the client's; those that Anthropic runs have other types."""

    type: Literal["custom"] = "custom"
    name: str
    description: str | None = None
    input_schema: JsonObject
    strict: bool = False
    eager_input_streaming: bool | None = None  # arguments are always streamed as they come
    input_examples: list[Any] | None = None

    def as_tool(self) -> Tool:
        return Tool(self.name, self.description, self.input_schema, self.strict)


_Tools = Annotated[Listed[AnthropicTool], at_most(MOST_TOOLS, "tools")]


class AnthropicToolChoice(Strict):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False

    @model_validator(mode="after")
    def _check(self) -> AnthropicToolChoice:
        if (self.name is not None) != (self.type == "tool"):
            raise RequestError(
                "tool_choice needs a name where its type is tool, and may have none elsewhere",
                "tool_choice.name",
            )
        return self

    def as_choice(self) -> ToolChoice:
        if self.name is not None:
            return ToolChoice.named(self.name)
        if self.type == "any":
            return ToolChoice("required")
        return ToolChoice("none") if self.type == "none" else AUTO


class ThinkingConfig(Strict):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(Strict):
    type: Literal["json_schema"]
    schema_: JsonObject = Field(alias="schema")


class OutputConfig(Strict):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class Edit(Strict):
    """Old thinking is shown to the model or not as its chat template will have it."""

    type: Literal["clear_thinking_20251015"]
    keep: Any = None


class ContextManagement(Strict):
    edits: list[Edit] = Field(default_factory=list)


class CountTokensRequest(Cacheable):
    """What makes a prompt.

    thread: Anthropic keeps what was said before; here every request says all of it.
    """

    model: str | None = None
    messages: Annotated[Listed[AnthropicMessage], at_most(_MOST_MESSAGES, "messages")]
    system: _Texts = Field(default_factory=list)
    tools: _Tools = Field(default_factory=list)
    tool_choice: AnthropicToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig = OutputConfig()
    context_management: ContextManagement | None = None
    thread: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check_thread(self) -> CountTokensRequest:
        if self.thread is not None:
            raise UnsupportedThreadError("Quire keeps no threads: send all messages", "thread")
        return self


class MessagesRequest(CountTokensRequest):
    max_tokens: int
    stop_sequences: Texts = Field(default_factory=list)
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None

    metadata: dict[str, Any] | None = None  # from here on what changes nothing here
    service_tier: Literal["auto", "standard_only"] | None = None
    speed: Literal["standard"] | None = None
    inference_geo: str | None = None
    diagnostics: dict[str, Any] | None = None


FIELD_NAMES = {
    "prompt": "messages",
    "stop": "stop_sequences",
    "thinking_token_budget": "thinking.budget_tokens",
    "structured_outputs": "output_config.format",
    "continue_final_message": "messages",
}


def turn(
    request: CountTokensRequest, params: SamplingParams, options: Mapping[str, Any]
) -> ConversationTurn:
    choice = request.tool_choice
    messages = list(_messages(request))
    return ConversationTurn(
        messages=messages,
        params=params,
        tools=[tool.as_tool() for tool in request.tools],
        choice=AUTO if choice is None else choice.as_choice(),
        parallel_calls=choice is None or not choice.disable_parallel_tool_use,
        reasoning_effort=request.output_config.effort,
        variables=_variables(request),
        rendering=going_on(messages),
        options=options,
        marks=list(_marks(request)),
        warnings=request.warnings,
    )


async def _begin(
    service: Service,
    request: CountTokensRequest,
    params: SamplingParams,
    options: Mapping[str, Any],
) -> PreparedChat:
    read = partial(turn, request, params, options)
    return await begin(service, await service.bodies.done(read, large=request.large))


def _marks(request: CountTokensRequest) -> Iterator[Mark]:
    """The marks of what is to be cached, in the order of the prompt."""
    for tool in request.tools:
        yield from mark_of(tool.cache_control, tool.description or tool.name)
    for text in request.system:
        yield from mark_of(text.cache_control, text.text)
    for message in request.messages:
        last = message is request.messages[-1]
        for block in message.content:
            if isinstance(block, TextBlock):
                yield from mark_of(block.cache_control, None if last else block.text)
            elif isinstance(block, ToolResultBlock):
                yield from mark_of(block.cache_control, None if last else _joined(block.content))
    yield from mark_of(request.cache_control, None)


def sampling_params(request: MessagesRequest, defaults: Mapping[str, Any]) -> SamplingParams:
    given = given_of(request, "temperature", "top_p", "top_k")
    if request.thinking is not None and request.thinking.type == "enabled":
        given["thinking_token_budget"] = request.thinking.budget_tokens
    if request.output_config.format is not None:
        given["structured_outputs"] = StructuredOutputs(json=request.output_config.format.schema_)
    stop = request.stop_sequences
    return SamplingParams.over(defaults, {**given, "max_tokens": request.max_tokens, "stop": stop})


def _expect_no_thoughts(request: MessagesRequest) -> None:
    """Agents ask every model for some; one that has none keeps to any budget."""
    if request.thinking is not None and request.thinking.type == "enabled":
        request.thinking = None
        request.warnings.append("thinking was left out: this model does not reason")


def _variables(request: CountTokensRequest) -> dict[str, Any]:
    """The chat template's variables."""
    variables: dict[str, Any] = {}
    if request.thinking is not None and request.thinking.type != "adaptive":
        variables["enable_thinking"] = request.thinking.type == "enabled"
    return variables


def _messages(request: CountTokensRequest) -> Iterator[Message]:
    if request.system:
        yield {"role": "system", "content": _joined(request.system)}
    for message in request.messages:
        if message.role == "assistant":
            yield _assistant(message)
        else:
            yield from _others(message)


def _assistant(message: AnthropicMessage) -> Message:
    texts = [block for block in message.content if isinstance(block, TextBlock)]
    thoughts = [block.thinking for block in message.content if isinstance(block, ThinkingBlock)]
    calls = [
        called(block.id, block.name, block.input)
        for block in message.content
        if isinstance(block, ToolUseBlock)
    ]
    thought = "\n".join(thoughts)
    return said("assistant", _joined(texts), reasoning_content=thought, tool_calls=calls)


def _others(message: AnthropicMessage) -> Iterator[Message]:
    """A user's turn holds the results of tools too, which are messages of their own here."""
    texts: list[TextBlock] = []
    for block in message.content:
        if isinstance(block, TextBlock):
            texts.append(block)
        elif isinstance(block, ToolResultBlock):
            if texts:
                yield {"role": message.role, "content": _joined(texts)}
                texts = []
            content = _joined(block.content)
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}
    if texts or not message.content:
        yield {"role": message.role, "content": _joined(texts)}


def _joined(blocks: Sequence[TextBlock]) -> str:
    return "\n".join(block.text for block in blocks)


_DELTAS = {
    Kind.TEXT: ("text_delta", "text"),
    Kind.REASONING: ("thinking_delta", "thinking"),
    Kind.CALL: ("input_json_delta", "partial_json"),
}
_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "stop": "end_turn"}


class MessageUsage(Answer):
    """Tokens found in the cache are no ``input_tokens``, nor are those before the last breakpoint,
    which are written to it: the three add up to the prompt."""

    input_tokens: int
    cache_creation_input_tokens: int | UnsetType = UNSET
    cache_read_input_tokens: int | UnsetType = UNSET
    output_tokens: int = 0
    output_tokens_details: dict[str, int] | UnsetType = UNSET


class MessageAnswer(Answer, kw_only=True):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[dict[str, Any]]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"] | None = None
    stop_sequence: str | None = None
    usage: MessageUsage
    warnings: list[str] | UnsetType = UNSET


class MessageEvent(Answer):
    """One of a stream's events, of Anthropic's types, from message_start to message_stop."""

    type: str
    message: MessageAnswer | UnsetType = UNSET
    index: int | UnsetType = UNSET
    content_block: dict[str, Any] | UnsetType = UNSET
    delta: dict[str, Any] | UnsetType = UNSET
    usage: MessageUsage | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


class CountedTokens(Answer):
    input_tokens: int
    warnings: list[str] | UnsetType = UNSET


def add_anthropic(app: FastAPI, service: Service) -> None:
    @body_route(
        app,
        service,
        MessagesRequest,
        gives(MessageAnswer, MessageEvent, framing=PINGED_EVENTS),
        "/v1/messages",
    )
    async def messages(http: Request, request: MessagesRequest) -> Response:
        """Anthropic's Messages: answer a conversation."""
        model = service.model_of(request.model, request.warnings)
        if service.speech.marks is None and not service.config.strict_fields:
            _expect_no_thoughts(request)
        with in_callers_words(FIELD_NAMES, in_text=True):
            params = sampling_params(request, service.input_processor.sampling_defaults)
            options = service.caller(http).options(model)
            conversation = await _begin(service, request, params, options)
        writer = MessageWriter(conversation, model.name, request.warnings)
        if request.stream:
            return EventStream(writer.events(), PINGED_EVENTS, service.silence)
        return respond(await writer.whole())

    @body_route(app, service, CountTokensRequest, gives(CountedTokens), "/v1/messages/count_tokens")
    async def count_tokens(http: Request, request: CountTokensRequest) -> Response:
        """How many tokens a request has."""
        service.model_of(request.model, request.warnings)
        with in_callers_words(FIELD_NAMES, in_text=True):
            conversation = await _begin(service, request, SamplingParams(max_tokens=1), {})
        warnings = request.warnings or UNSET
        return respond(CountedTokens(conversation.num_prompt_tokens, warnings))


class MessageWriter:
    """What the model says as one message, whole or as events."""

    def __init__(self, conversation: PreparedChat, model: str, warnings: list[str]) -> None:
        self._conversation = conversation
        self._warnings, self._told = warnings, len(warnings)
        self._turn = TurnStream(
            conversation, "msg-", lambda: f"toolu_{uuid.uuid4().hex[:24]}", FIELD_NAMES
        )
        self._id = f"msg_{uuid.uuid4().hex}"
        self._model = model

    async def whole(self) -> MessageAnswer:
        await self._turn.all()
        content = [_content(block) for block in self._turn.blocks if block.cut != ""]
        return self._message(content, self._usage(), **self._stop())

    def events(self) -> Events:
        return self._turn.events(
            lambda _, changes: [event for change in changes for event in _events(change)],
            self._ending,
            self._opening,
        )

    def _opening(self, first: Delta) -> list[MessageEvent]:
        # Clients add up what they find here and in message_delta, of which Claude Code passes over
        # what is 0: so this says already which tokens are read from the cache.
        usage = self._usage_of(
            self._conversation.num_prompt_tokens, self._conversation.told(first.cached_tokens)
        )
        start = MessageEvent("message_start", self._message([], usage))
        return [start, MessageEvent("ping")]

    def _ending(self) -> list[MessageEvent]:
        delta = MessageEvent("message_delta", delta=self._stop(), usage=self._usage())
        delta.warnings = self._warnings[self._told :] or UNSET
        return [delta, MessageEvent("message_stop")]

    def _message(self, content: list[Json], usage: MessageUsage, **stop: Any) -> MessageAnswer:
        return MessageAnswer(
            id=self._id,
            model=self._model,
            content=content,
            usage=usage,
            warnings=[*self._warnings] or UNSET,
            **stop,
        )

    def _stop(self) -> Json:
        (output,) = self._turn.result.outputs
        if self._turn.reason == "stop" and isinstance(output.stop_reason, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": output.stop_reason}
        reason = _STOP_REASONS.get(self._turn.reason or "stop", "end_turn")
        return {"stop_reason": reason, "stop_sequence": None}

    def _usage(self) -> MessageUsage:
        usage = self._conversation.usage(self._turn.result)
        told = self._usage_of(usage.prompt, usage.cached)
        told.output_tokens = usage.completion
        if usage.reasoning is not None:
            told.output_tokens_details = {"thinking_tokens": usage.reasoning}
        return told

    def _usage_of(self, prompt: int, cached: int | None) -> MessageUsage:
        read = cached or 0
        written = max(0, self._conversation.num_kept - read)
        return MessageUsage(prompt - read - written, written, read)


def _content(block: Block) -> Json:
    if block.cut is not None:  # it is no call, and must not be taken for one
        return {"type": "text", "text": block.cut}
    match block.kind:
        case Kind.TEXT:
            return {"type": "text", "text": block.text}
        case Kind.REASONING:
            return {"type": "thinking", "thinking": block.text, "signature": ""}
    return {
        "type": "tool_use",
        "id": block.call_id,
        "name": block.name,
        "input": block.arguments if block.text else {},  # in a stream they are to come
    }


def _events(change: Change) -> Iterator[MessageEvent]:
    index = change.block.index
    match change:
        case BlockOpened(block):
            empty = Block(index, block.kind, name=block.name, call_id=block.call_id)
            content = _content(empty)
            yield MessageEvent("content_block_start", index=index, content_block=content)
        case BlockGrown(block, text):
            kind, name = _DELTAS[block.kind]
            delta = {"type": kind, name: text}
            yield MessageEvent("content_block_delta", index=index, delta=delta)
        case BlockClosed(block):
            if block.kind is Kind.REASONING:
                delta = {"type": "signature_delta", "signature": ""}
                yield MessageEvent("content_block_delta", index=index, delta=delta)
            yield MessageEvent("content_block_stop", index=index)
