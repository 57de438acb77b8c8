"""Ollama's API: /api/generate."""

from __future__ import annotations

import uuid

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from quire.engine import CompletionOutput, Delta, Message, RequestOutput
from quire.protocol import SamplingParams
from quire.server.doors.answering import asked, in_their_words, now, outputs, pieces
from quire.server.doors.ollama_models import add_models, check_model
from quire.server.doors.ollama_types import GenerateRequest, OllamaRequest
from quire.server.error_shapes import in_ollama_s_shape
from quire.server.guards.limits import check_answer
from quire.server.logprobs import chat_logprobs
from quire.server.openapi import takes
from quire.server.rendering import json_response
from quire.server.service import Service
from quire.server.streaming import LINES, EventStream, Json

_NANOSECONDS = 10**9
_NAMES = {  # of fields that are called otherwise here
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "logprobs": "top_logprobs",
    **{
        name: f"options.{name}"
        for name in (
            "temperature", "top_k", "top_p", "min_p", "seed", "stop", "num_ctx", "mirostat",
            "tfs_z", "typical_p", "presence_penalty", "frequency_penalty", "repeat_last_n",
        )
    },
}  # fmt: skip


def add_ollama(app: FastAPI, service: Service) -> None:
    add_models(app, service)

    @app.post("/api/generate", openapi_extra=takes(GenerateRequest))
    async def generate(http: Request) -> Response:
        request = await service.bodies.parse(http, GenerateRequest, from_tools=True)
        check_model(service, request.model)
        if not request.prompt:
            return _loaded(request)
        with in_their_words(_NAMES):
            params = _params(service, request)
            prompt = await _prompt(service, request)
        run = service.run(
            f"ollama-{uuid.uuid4().hex}", [asked(service.caller(http), prompt)], params, {}
        )
        wording = GenerateWording(request)
        if request.stream:
            return EventStream(pieces(run, wording.lines, _NAMES), LINES, in_ollama_s_shape)
        (output,) = await outputs(run, _NAMES)
        return await json_response(lambda: wording.whole(output), large=request.logprobs)


def _params(service: Service, request: OllamaRequest) -> SamplingParams:
    options, input_processor = request.options, service.input_processor
    options.check_context(input_processor.max_model_len)
    params = options.sampling_params(
        input_processor.sampling_defaults,
        options.num_predict,
        logprobs=request.top_logprobs if request.logprobs else None,
    )
    check_answer(1, params, input_processor)
    return params


async def _prompt(service: Service, request: GenerateRequest) -> str | list[int]:
    if request.raw:
        return request.prompt
    messages: list[Message] = [{"role": "user", "content": request.prompt}]
    if request.system:
        messages.insert(0, {"role": "system", "content": request.system})
    with service.reserve():
        return await service.engine.chat_prompt(messages, {})


def _loaded(request: GenerateRequest) -> Response:
    """Without a prompt, a client asks for the model to be loaded, or not to be any more."""
    reason = "unload" if request.keep_alive in (0, "0") else "load"
    head = {"model": request.model, "created_at": now(), "response": ""}
    media_type = LINES.media_type if request.stream else None
    return JSONResponse({**head, "done": True, "done_reason": reason}, media_type=media_type)


class GenerateWording:
    """Lines that hold a piece of text each, and a last one with what it all took."""

    def __init__(self, request: GenerateRequest) -> None:
        self._request = request

    def lines(self, number: int, delta: Delta) -> list[Json]:
        lines = []
        if delta.text or delta.logprobs:
            text = {"response": delta.text, "done": False, **self._logprobs(delta)}
            lines.append({**self._head(), **text})
        if delta.final is not None:
            lines.append({**self._head(), "response": "", **ending(delta.final)})
        return lines

    def whole(self, output: RequestOutput) -> Json:
        (text,) = output.outputs
        told = {"response": text.text, **self._logprobs(text)}
        return {**self._head(), **told, **ending(output)}

    def _head(self) -> Json:
        return {"model": self._request.model, "created_at": now()}

    def _logprobs(self, source: CompletionOutput | Delta) -> Json:
        if source.logprobs is None:
            return {}
        entries = chat_logprobs(source.logprobs, self._request.top_logprobs)
        return {"logprobs": list(entries["content"])}


def ending(output: RequestOutput) -> Json:
    """What the last line says: why it is the last, and what the request has used."""
    story = output.metrics
    first = story.e2e_latency if story.ttft is None else story.ttft
    return {
        "done": True,
        "done_reason": output.outputs[0].finish_reason,
        "total_duration": _nanoseconds(story.e2e_latency),
        "load_duration": 0,  # it is there before anybody asks
        "prompt_eval_count": story.num_prompt_tokens,
        "prompt_eval_duration": _nanoseconds(first),
        "eval_count": story.num_output_tokens,
        "eval_duration": _nanoseconds(story.e2e_latency - first),
    }


def _nanoseconds(seconds: float) -> int:
    return round(seconds * _NANOSECONDS)
