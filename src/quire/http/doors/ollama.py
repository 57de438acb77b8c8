"""Ollama's API: /api/chat and /api/generate."""

from __future__ import annotations

import uuid

from fastapi import FastAPI, Request
from fastapi.responses import Response

from quire.core.protocol import SamplingParams, StructuredOutputs
from quire.http.answers.rendering import json_response, respond
from quire.http.answers.streaming import LINES, EventStream
from quire.http.chats.conversation import ConversationTurn, begin
from quire.http.description.openapi import gives, takes
from quire.http.doors.answering import going_on, in_their_words
from quire.http.doors.ollama_models import add_models, check_model
from quire.http.doors.ollama_types import GenerateRequest, OllamaChatRequest, OllamaRequest
from quire.http.doors.ollama_writer import (
    GeneratedAnswer,
    Line,
    OllamaChatAnswer,
    OllamaWriter,
)
from quire.http.doors.turn_stream import RawText, Speaker, TurnStream
from quire.http.error_shapes import OllamaErrorAnswer
from quire.http.guards.clients import Caller
from quire.http.guards.limits import check_answer
from quire.http.service import ModelChoice, Service

_NAMES = {  # of fields that are called otherwise here
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "logprobs": "top_logprobs",
    "structured_outputs": "format",
    **{
        name: f"options.{name}"
        for name in (
            "temperature", "top_k", "top_p", "min_p", "seed", "stop", "num_ctx",
            "presence_penalty", "frequency_penalty",
        )
    },
}  # fmt: skip


def add_ollama(app: FastAPI, service: Service) -> None:
    add_models(app, service)

    @app.post(
        "/api/generate",
        openapi_extra=takes(GenerateRequest),
        responses=gives(GeneratedAnswer, GeneratedAnswer, framing=LINES),
    )
    async def generate(http: Request) -> Response:
        """Ollama's: answer a prompt."""
        request = await service.bodies.parse(http, GenerateRequest, from_tools=True)
        model = check_model(service, request.model)
        if not request.prompt:
            return _loaded(request, GeneratedAnswer)
        with in_their_words(_NAMES | {"messages": "prompt"}):
            params = _params(service, request)
            speaker = await _speaker(service, model, service.caller(http), request, params)
        return await _answer(service, request, speaker, GeneratedAnswer)

    @app.post(
        "/api/chat",
        openapi_extra=takes(OllamaChatRequest),
        responses=gives(OllamaChatAnswer, OllamaChatAnswer, framing=LINES),
    )
    async def chat(http: Request) -> Response:
        """Ollama's: answer a conversation."""
        request = await service.bodies.parse(http, OllamaChatRequest, from_tools=True)
        model = check_model(service, request.model)
        if not request.messages:
            return _loaded(request, OllamaChatAnswer)
        with in_their_words(_NAMES | {"prompt": "messages"}):
            messages = [message.for_template() for message in request.messages]
            turn = ConversationTurn(
                messages=messages,
                params=_params(service, request),
                tools=[tool.as_tool() for tool in request.tools],
                variables=request.variables,
                rendering=going_on(messages),
                options=service.caller(http).options(model.options),
            )
            speaker = await begin(service, turn)
        return await _answer(service, request, speaker, OllamaChatAnswer)


async def _speaker(
    service: Service,
    model: ModelChoice,
    caller: Caller,
    request: GenerateRequest,
    params: SamplingParams,
) -> Speaker:
    own = caller.options(model.options)
    templated = service.input_processor.tokenizer.chat_template or request.system
    if request.raw or not templated:
        return RawText(service, {"prompt": request.prompt, **own}, params)
    turn = ConversationTurn(
        messages=request.messages,
        params=params,
        variables=request.variables,
        options=own,
    )
    return await begin(service, turn)


async def _answer(
    service: Service, request: OllamaRequest, speaker: Speaker, line: type[Line]
) -> Response:
    stream = TurnStream(speaker, lambda: f"call_{uuid.uuid4().hex[:24]}", _NAMES)
    writer = OllamaWriter(stream, request, line)
    if request.stream:
        return EventStream(writer.lines(), LINES, OllamaErrorAnswer.of, service.silence)
    whole = await writer.whole()
    return await json_response(lambda: whole, large=request.logprobs)


def _params(service: Service, request: OllamaRequest) -> SamplingParams:
    given, input_processor = request.options, service.input_processor
    given.check_context(input_processor.max_model_len)
    structure = None
    if request.format == "json":
        structure = StructuredOutputs(json_object=True)
    elif request.format:
        structure = StructuredOutputs(json=request.format)
    params = given.sampling_params(
        input_processor.sampling_defaults,
        given.num_predict,
        logprobs=request.top_logprobs if request.logprobs else None,
        structured_outputs=structure,
    )
    check_answer(1, params, input_processor, service.config.max_logprobs)
    return params


def _loaded(request: OllamaRequest, line: type[Line]) -> Response:
    """Without a prompt, a client asks for the model to be loaded, or not to be any more."""
    reason = "unload" if request.keep_alive in (0, "0") else "load"
    response = respond(line.of(request.model, done=True, done_reason=reason))
    if request.stream:
        response.headers["content-type"] = LINES.media_type
    return response
