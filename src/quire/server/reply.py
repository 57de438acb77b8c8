"""From the engine's deltas and outputs to the body of an answer, whole or in chunks."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import fields
from functools import partial
from typing import Protocol

from fastapi.responses import Response

from quire.engine import CompletionOutput, Delta, RequestOutput
from quire.metrics import RequestMetrics
from quire.protocol import SamplingParams
from quire.server.openai_types import GenerationRequest
from quire.server.rendering import json_response
from quire.server.service import Progress, Service
from quire.server.streaming import Events, EventStream, Json

_TOLD = (  # of RequestMetrics; its moments are of no use on another machine's clock
    *(field.name for field in fields(RequestMetrics) if not field.name.endswith("_time")),
    *("num_preemptions", "ttft", "tpot", "e2e_latency"),
)
_MUCH = 2**20  # bytes of an answer, after which memory is given back
_FEW_CHOICES = 16  # of which an answer can be made at once
_FEW_LOGPROBS = 1024  # of which chunks can
_TELL_OF_OTHERS = ("cached_tokens", "block_seconds")  # who have sent the same, or are sending it

Account = Callable[[Mapping[int, RequestOutput]], Json]


class Wording(Protocol):
    """How an endpoint words the choices of one answer."""

    id_prefix: str
    object: str
    chunk_object: str

    def choice(
        self, index: int, number: int, output: CompletionOutput, request: RequestOutput
    ) -> Json:
        """A finished output of prompt ``number``."""
        ...

    def opening(self, index: int, number: int) -> list[Json]:
        """What goes before the first chunk of an output of prompt ``number``."""
        ...

    def chunks(self, index: int, delta: Delta) -> list[Json]:
        """What an output gained: a token at least, whose text may be none yet. Never empty."""
        ...

    def reasoning_tokens(self, request: RequestOutput) -> int | None:
        """How many of its tokens were reasoning; None where nothing is said of that."""
        ...


async def answer(
    service: Service,
    request: GenerationRequest,
    model: str,
    params: SamplingParams,
    wording: Wording,
    run: Callable[[str], Progress],
) -> Response:
    """Answer as the request asks, at once or as a stream.

    run: begins the work, given an id for it.
    """
    request_id = wording.id_prefix + uuid.uuid4().hex
    head = {"id": request_id, "created": int(time.time()), "model": model}
    progress = run(request_id)
    tell_cached = service.config.enable_prompt_tokens_details
    account = partial(_account, request, wording, tell_cached=tell_cached)
    if request.stream:
        head["object"] = wording.chunk_object
        return EventStream(_chunks(head, request, params.num_outputs, progress, wording, account))
    head["object"] = wording.object
    outputs = {}
    async with aclosing(progress):
        async for deltas in progress:
            outputs.update({number: delta.final for number, delta in deltas if delta.final})

    def build() -> Json:
        n = params.num_outputs
        choices = [
            wording.choice(number * n + output.index, number, output, outputs[number])
            for number in sorted(outputs)
            for output in outputs[number].outputs
        ]
        return {**head, "choices": choices, **account(outputs)}

    scored = params.logprobs is not None or params.prompt_logprobs is not None
    many = len(outputs) * params.num_outputs > _FEW_CHOICES
    response = await json_response(build, large=scored or many)
    if len(response.body) > _MUCH:
        service.engine.give_memory_back()
    return response


async def _chunks(
    head: Json,
    request: GenerationRequest,
    n: int,
    progress: Progress,
    wording: Wording,
    account: Account,
) -> Events:
    usage = {"usage": None} if request.include_usage else {}
    opened = set()
    outputs = {}
    async with aclosing(progress):
        async for deltas in progress:
            choices: list[Json] = []
            logprobs = 0
            for number, delta in deltas:
                index = number * n + delta.index
                if index not in opened:
                    opened.add(index)
                    choices += wording.opening(index, number)
                choices += wording.chunks(index, delta)
                if delta.final is not None:
                    outputs[number] = delta.final
                logprobs += sum(map(len, delta.logprobs or ()))
                if logprobs > _FEW_LOGPROBS:
                    yield [{**head, "choices": [choice], **usage} for choice in choices]
                    choices, logprobs = [], 0
                    await asyncio.sleep(0)  # others have their turn
            if choices:
                yield [{**head, "choices": [choice], **usage} for choice in choices]
    if request.include_usage:
        yield [{**head, "choices": [], **account(outputs)}]


def _account(
    request: GenerationRequest,
    wording: Wording,
    outputs: Mapping[int, RequestOutput],
    *,
    tell_cached: bool,
) -> Json:
    """What the request has used, its tokens and (if it asks) its memory and time."""
    stories = [outputs[number].metrics for number in sorted(outputs)]
    prompt = sum(story.num_prompt_tokens for story in stories)
    completion = sum(story.num_output_tokens for story in stories)
    usage: Json = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if tell_cached:
        cached = sum(story.cached_tokens for story in stories)
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    reasoning = [wording.reasoning_tokens(outputs[number]) for number in sorted(outputs)]
    if None not in reasoning:
        usage["completion_tokens_details"] = {"reasoning_tokens": sum(filter(None, reasoning))}
    if not request.include_metrics:
        return {"usage": usage}
    told = [name for name in _TOLD if tell_cached or name not in _TELL_OF_OTHERS]
    metrics = [{name: getattr(story, name) for name in told} for story in stories]
    return {"usage": usage, "metrics": metrics}
