"""Anthropic's API: POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.responses import Response
from msgspec import UNSET, UnsetType

from quire.core.protocol import SamplingParams
from quire.http.answers.rendering import Answer, Json, respond
from quire.http.answers.streaming import PINGED_EVENTS, Events, EventStream
from quire.http.chats.conversation import PreparedChat, begin
from quire.http.description.openapi import gives, takes
from quire.http.doors.answering import in_their_words
from quire.http.doors.anthropic_turns import FIELD_NAMES, sampling_params, turn
from quire.http.doors.anthropic_types import CountTokensRequest, MessagesRequest
from quire.http.doors.blocks import Block, BlockClosed, BlockGrown, BlockOpened, Change, Kind
from quire.http.doors.turn_stream import TurnStream
from quire.http.error_shapes import AnthropicErrorAnswer
from quire.http.service import Service

_DELTAS = {
    Kind.TEXT: ("text_delta", "text"),
    Kind.REASONING: ("thinking_delta", "thinking"),
    Kind.CALL: ("input_json_delta", "partial_json"),
}
_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "stop": "end_turn"}


class MessageUsage(Answer):
    """Tokens found in the cache are no ``input_tokens``: the two add up to the prompt."""

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


class MessageEvent(Answer):
    """One of a stream's events, of Anthropic's types, from message_start to message_stop."""

    type: str
    message: MessageAnswer | UnsetType = UNSET
    index: int | UnsetType = UNSET
    content_block: dict[str, Any] | UnsetType = UNSET
    delta: dict[str, Any] | UnsetType = UNSET
    usage: MessageUsage | UnsetType = UNSET


class CountedTokens(Answer):
    input_tokens: int


def add_anthropic(app: FastAPI, service: Service) -> None:
    @app.post(
        "/v1/messages",
        openapi_extra=takes(MessagesRequest),
        responses=gives(MessageAnswer, MessageEvent, framing=PINGED_EVENTS),
    )
    async def messages(http: Request) -> Response:
        """Anthropic's Messages: answer a conversation."""
        request = await service.bodies.parse(http, MessagesRequest)
        model = service.check_model(request.model)
        with in_their_words(FIELD_NAMES):
            params = sampling_params(request, service.input_processor.sampling_defaults)
            asked = turn(request, params, service.caller(http).options(model.options))
            conversation = await begin(service, asked)
        writer = MessageWriter(conversation, model.name)
        if request.stream:
            shape, silence = AnthropicErrorAnswer.of, service.silence
            return EventStream(writer.events(), PINGED_EVENTS, shape, silence)
        return respond(await writer.whole())

    @app.post(
        "/v1/messages/count_tokens",
        openapi_extra=takes(CountTokensRequest),
        responses=gives(CountedTokens),
    )
    async def count_tokens(http: Request) -> Response:
        """How many tokens a request has."""
        request = await service.bodies.parse(http, CountTokensRequest)
        service.check_model(request.model)
        with in_their_words(FIELD_NAMES):
            conversation = await begin(service, turn(request, SamplingParams(max_tokens=1), {}))
        return respond(CountedTokens(conversation.num_prompt_tokens))


class MessageWriter:
    """What the model says as one message, whole or as events."""

    def __init__(self, conversation: PreparedChat, model: str) -> None:
        self._conversation = conversation
        self._stream = TurnStream(conversation, _new_call_id, FIELD_NAMES)
        self._state = self._stream.state
        self._id = f"msg_{uuid.uuid4().hex}"
        self._model = model

    async def whole(self) -> MessageAnswer:
        await self._stream.all("msg-")
        content = [_content(block) for block in self._state.blocks]
        return self._message(content, self._usage(), **self._stop())

    async def events(self) -> Events:
        async with aclosing(self._stream.changes("msg-")) as steps:
            opening: list[MessageEvent] = [self._start(), MessageEvent("ping")]
            async for step in steps:
                events = [event for _, changes in step for change in changes
                          for event in _events(change)]  # fmt: skip
                if self._state.output is not None:
                    events += [
                        MessageEvent("message_delta", delta=self._stop(), usage=self._usage()),
                        MessageEvent("message_stop"),
                    ]
                if opening or events:
                    yield [*opening, *events]
                    opening = []

    def _message(self, content: list[Json], usage: MessageUsage, **stop: Any) -> MessageAnswer:
        return MessageAnswer(id=self._id, model=self._model, content=content, usage=usage, **stop)

    def _start(self) -> MessageEvent:
        usage = MessageUsage(self._conversation.num_prompt_tokens)
        return MessageEvent("message_start", self._message([], usage))

    def _stop(self) -> Json:
        assert self._state.output is not None
        (output,) = self._state.output.outputs
        if self._state.reason == "stop" and isinstance(output.stop_reason, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": output.stop_reason}
        reason = _STOP_REASONS.get(self._state.reason or "stop", "end_turn")
        return {"stop_reason": reason, "stop_sequence": None}

    def _usage(self) -> MessageUsage:
        assert self._state.output is not None
        usage = self._conversation.usage(self._state.output)
        cached, reasoning = usage.cached or 0, usage.reasoning
        details = UNSET if reasoning is None else {"thinking_tokens": reasoning}
        return MessageUsage(usage.prompt - cached, 0, cached, usage.completion, details)


def _new_call_id() -> str:
    return f"toolu_{uuid.uuid4().hex[:24]}"


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
