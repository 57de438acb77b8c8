"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.responses import Response
from msgspec import UNSET, UnsetType

from quire.engine.outputs import CompletionOutput, Delta, RequestOutput
from quire.http.answers.logprobs import ChatLogprobs, chat_logprobs
from quire.http.answers.rendering import Answer, encode, respond
from quire.http.chats.conversation import ConversationTurn, PreparedChat, begin
from quire.http.chats.kept_prompts import Mark, mark_of
from quire.http.handover import remote_prefill
from quire.http.openai.answers import (
    AnswerMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    MessageCall,
    MessageCallFunction,
    MessageDelta,
    answer,
)
from quire.http.openai.requests import ChatRequest
from quire.http.openapi import body_route, gives
from quire.http.service import Service
from quire.text.dialect import (
    CallArguments,
    CallBegun,
    CallCut,
    CallEnded,
    ContentPiece,
    Event,
    ReasoningPiece,
    Reply,
)


class AppliedTemplate(Answer):
    prompt: str
    warnings: list[str] | UnsetType = UNSET


class CountedInput(Answer, kw_only=True):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


def add_chats(app: FastAPI, service: Service) -> None:
    @body_route(
        app,
        service,
        ChatRequest,
        gives(ChatCompletion, ChatCompletionChunk),
        "/v1/chat/completions",
        "/chat/completions",
    )
    async def chat_completions(http: Request, request: ChatRequest) -> Response:
        """Answer a conversation."""
        caller = service.caller(http)
        model = service.model_of(request.model, request.warnings)
        service.check_chat_template(request.chat_template)
        options = request.options(caller, model)
        if request.kv_transfer_params:
            options |= remote_prefill(service, request.kv_transfer_params)
        conversation = await _begin(service, request, options)
        return await answer(
            service,
            caller,
            request,
            model.name,
            conversation.params,
            ChatWording(request, conversation),
            conversation.run,
            [conversation.prompt_token_ids],
        )

    @body_route(app, service, ChatRequest, gives(AppliedTemplate), "/apply-template")
    async def apply_template(http: Request, request: ChatRequest) -> Response:
        """llama.cpp's: the prompt that a chat comes to."""
        service.model_of(request.model, request.warnings)
        service.check_chat_template(request.chat_template)
        conversation = await _begin(service, request, {})
        with service.reserve():
            text = await service.engine.detokenize(conversation.prompt_token_ids, own=True)
        return respond(AppliedTemplate(text, request.warnings or UNSET))

    counting = "/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"

    @body_route(app, service, ChatRequest, gives(CountedInput), *counting)
    async def count(http: Request, request: ChatRequest) -> Response:
        """llama.cpp's: how many tokens a chat's prompt has."""
        service.model_of(request.model, request.warnings)
        service.check_chat_template(request.chat_template)
        conversation = await _begin(service, request, {})
        return respond(CountedInput(input_tokens=conversation.num_prompt_tokens))


async def _begin(
    service: Service, request: ChatRequest, options: Mapping[str, Any]
) -> PreparedChat:
    read = partial(_turn, service, request, options)
    return await begin(service, await service.bodies.done(read, large=request.large))


def _turn(service: Service, request: ChatRequest, options: Mapping[str, Any]) -> ConversationTurn:
    return ConversationTurn(
        [message.for_template() for message in request.messages],
        request.sampling_params(service.input_processor.sampling_defaults),
        tools=[tool.as_tool() for tool in request.tools or ()],
        choice=request.choice,
        parallel_calls=request.parallel_tool_calls,
        reasoning_effort=request.reasoning_effort,
        include_reasoning=request.include_reasoning,
        variables=request.chat_template_kwargs or {},
        rendering=request.rendering,
        form=request.prompt_form(service.input_processor.max_model_len),
        options=options,
        marks=list(_marks(request)),
        field_names=request.field_names,
        widened=request.widened,
        warnings=request.warnings,
    )


def _marks(request: ChatRequest) -> Iterator[Mark]:
    for message in request.messages:
        for part in message.content if isinstance(message.content, list) else ():
            text = None if message is request.messages[-1] else part.text
            yield from mark_of(part.cache_control, text)


_SILENCE = ContentPiece("")
_TEXT = (
    b'{"index":%d,"delta":{"content":%b},"logprobs":null,"finish_reason":null,"stop_reason":null,'
    b'"token_ids":null}'
)


class ChatWording:
    """Choices that are a message of the assistant each."""

    id_prefix = "chatcmpl-"
    whole = ChatCompletion
    chunk = ChatCompletionChunk
    one_prompt = True

    def __init__(self, request: ChatRequest, conversation: PreparedChat) -> None:
        self._request = request
        self._conversation = conversation

    def choice(
        self, index: int, number: int, output: CompletionOutput, request: RequestOutput
    ) -> ChatChoice:
        reply, reason = self._conversation.reply(output)
        message, logprobs = self._message(reply), self._logprobs(output)
        return ChatChoice(index, message, logprobs, reason, output.stop_reason)

    def opening(self, index: int, number: int) -> list[ChatChunkChoice]:
        return [ChatChunkChoice(index, MessageDelta("assistant", self._request.echoed))]

    def silence(self, index: int) -> ChatChunkChoice:
        return ChatChunkChoice(index, MessageDelta())

    def text(self, index: int, delta: Delta) -> bytes | None:
        if delta.logprobs is not None or not self._conversation.listener(index).is_plain:
            return None
        return _TEXT % (index, encode(delta.text))

    def chunks(self, index: int, delta: Delta) -> list[ChatChunkChoice]:
        listener = self._conversation.listener(index)
        events = listener.hear(delta)
        if len(events) > 1:  # what comes next shows that a call has ended
            events = [event for event in events if not isinstance(event, (CallEnded, CallCut))]
        *before, last = events or [_SILENCE]
        reason = listener.finish_reason(delta.finish_reason)
        return [
            *(ChatChunkChoice(index, self._words(event)) for event in before),
            ChatChunkChoice(
                index, self._words(last), self._logprobs(delta), reason, delta.stop_reason
            ),
        ]

    def reasoning_tokens(self, request: RequestOutput) -> int | None:
        return self._conversation.usage(request).reasoning

    def _message(self, reply: Reply) -> AnswerMessage:
        content, reasoning = self._request.echoed + reply.content, reply.reasoning or None
        message = AnswerMessage(content=content, reasoning=reasoning, reasoning_content=reasoning)
        if reply.calls:
            message.content = content or None
            message.tool_calls = [
                MessageCall(
                    id=call.id or self._conversation.call_id(),
                    type="function",
                    function=MessageCallFunction(name=call.name, arguments=call.arguments),
                )
                for call in reply.calls
            ]
        return message

    def _words(self, event: Event) -> MessageDelta:
        """An event as a stream tells it."""
        match event:
            case ReasoningPiece(text):  # by its name in newer clients, and in older ones
                return MessageDelta(reasoning=text, reasoning_content=text)
            case CallBegun(number, name, id):
                call = MessageCall(
                    index=number,
                    id=id or self._conversation.call_id(),
                    type="function",
                    function=MessageCallFunction(name=name, arguments=""),
                )
                return MessageDelta(tool_calls=[call])
            case CallArguments(number, text):
                function = MessageCallFunction(arguments=text)
                return MessageDelta(tool_calls=[MessageCall(index=number, function=function)])
        return MessageDelta(content=event.text if isinstance(event, ContentPiece) else "")

    def _logprobs(self, source: CompletionOutput | Delta) -> ChatLogprobs | None:
        if source.logprobs is None:
            return None
        by_id = self._request.return_tokens_as_token_ids
        return chat_logprobs(source.logprobs, self._request.top_logprobs or 0, by_id=by_id)
