"""Anthropic's API: POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import aclosing

from fastapi import FastAPI, Request
from fastapi.responses import Response

from quire.core.protocol import SamplingParams
from quire.http.answers.rendering import json_response
from quire.http.answers.streaming import PINGED_EVENTS, Events, EventStream, Json
from quire.http.chats.conversation import Conversation, begin
from quire.http.description.openapi import gives, takes
from quire.http.doors.answering import in_their_words, options
from quire.http.doors.answers import CountedTokens, MessageAnswer, MessageEvent
from quire.http.doors.anthropic_turns import FIELD_NAMES, sampling_params, turn
from quire.http.doors.anthropic_types import CountTokensRequest, MessagesRequest
from quire.http.doors.blocks import Block, Change, Closed, Grown, Kind, Opened
from quire.http.doors.telling import Telling
from quire.http.error_shapes import in_anthropic_s_shape
from quire.http.service import Service

_DELTAS = {
    Kind.TEXT: ("text_delta", "text"),
    Kind.REASONING: ("thinking_delta", "thinking"),
    Kind.CALL: ("input_json_delta", "partial_json"),
}
_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "stop": "end_turn"}


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
            asked = turn(request, params, options(model, service.caller(http)))
            conversation = await begin(service, asked)
        writer = MessageWriter(conversation, model.name)
        if request.stream:
            shape, silence = in_anthropic_s_shape, service.silence
            return EventStream(writer.events(), PINGED_EVENTS, shape, silence)
        message = await writer.whole()
        return await json_response(lambda: message, large=False)

    @app.post(
        "/v1/messages/count_tokens",
        openapi_extra=takes(CountTokensRequest),
        responses=gives(CountedTokens),
    )
    async def count_tokens(http: Request) -> Json:
        """The tokens of what would be asked."""
        request = await service.bodies.parse(http, CountTokensRequest)
        service.check_model(request.model)
        with in_their_words(FIELD_NAMES):
            conversation = await begin(service, turn(request, SamplingParams(max_tokens=1), {}))
        return {"input_tokens": conversation.num_prompt_tokens}


class MessageWriter:
    """What the model says as one message, whole or as events."""

    def __init__(self, conversation: Conversation, model: str) -> None:
        self._conversation = conversation
        self._telling = Telling(conversation, _new_call_id, FIELD_NAMES)
        self._told = self._telling.told
        self._id = f"msg_{uuid.uuid4().hex}"
        self._model = model

    async def whole(self) -> Json:
        await self._telling.all("msg-")
        content = [_content(block) for block in self._told.blocks]
        return {**self._message(content), **self._stop(), "usage": self._usage()}

    async def events(self) -> Events:
        async with aclosing(self._telling.changes("msg-")) as steps:
            opening: list[Json] = [self._start(), {"type": "ping"}]
            async for step in steps:
                events = [event for _, changes in step for change in changes
                          for event in _events(change)]  # fmt: skip
                if self._told.output is not None:
                    events += self._ending()
                if opening or events:
                    yield [*opening, *events]
                    opening = []

    def _message(self, content: list[Json]) -> Json:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
        }

    def _start(self) -> Json:
        usage = {"input_tokens": self._conversation.num_prompt_tokens, "output_tokens": 0}
        return {"type": "message_start", "message": {**self._message([]), "usage": usage}}

    def _ending(self) -> list[Json]:
        return [
            {"type": "message_delta", "delta": self._stop(), "usage": self._usage()},
            {"type": "message_stop"},
        ]

    def _stop(self) -> Json:
        assert self._told.output is not None
        (output,) = self._told.output.outputs
        if self._told.reason == "stop" and isinstance(output.stop_reason, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": output.stop_reason}
        reason = _STOP_REASONS.get(self._told.reason or "stop", "end_turn")
        return {"stop_reason": reason, "stop_sequence": None}

    def _usage(self) -> Json:
        """Tokens found in the cache are no ``input_tokens``: the two add up to the prompt."""
        assert self._told.output is not None
        usage = self._conversation.usage(self._told.output)
        cached = usage.cached or 0
        told: Json = {
            "input_tokens": usage.prompt - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": usage.completion,
        }
        if usage.reasoning is not None:
            told["output_tokens_details"] = {"thinking_tokens": usage.reasoning}
        return told


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


def _events(change: Change) -> Iterator[Json]:
    index = change.block.index
    match change:
        case Opened(block):
            empty = Block(index, block.kind, name=block.name, call_id=block.call_id)
            content = _content(empty)
            yield {"type": "content_block_start", "index": index, "content_block": content}
        case Grown(block, text):
            kind, name = _DELTAS[block.kind]
            delta = {"type": kind, name: text}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        case Closed(block):
            if block.kind is Kind.REASONING:
                delta = {"type": "signature_delta", "signature": ""}
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
