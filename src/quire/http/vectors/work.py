"""Texts through the engine to vectors, and these as JSON has them."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping, Sequence

from quire.core.errors import RequestError
from quire.core.protocol import PoolingParams
from quire.engine.outputs import RequestOutput
from quire.engine.prompts import Prompt, as_dict
from quire.http.doors.answering import outputs
from quire.http.errors import in_callers_words
from quire.http.service import Service
from quire.http.vectors.answers import PromptUsage
from quire.text.prompt_form import PromptForm

_MOST_NUMBERS = 2**23  # in an answer: 2,048 vectors of 4,096, some 170 MB of JSON


async def vectors(
    service: Service,
    texts: Sequence[Prompt],
    params: PoolingParams,
    options: Mapping[str, object],
    field_names: Mapping[str, str],
    form: PromptForm = PromptForm(),  # noqa: B008  # frozen
) -> list[RequestOutput]:
    """The texts' finished requests, in their order; one that fails ends the others.

    options: what a prompt says beside its text. field_names: the engine's, as the caller has them.
    form: of texts and token ids.
    """
    _check_size(service, len(texts), params, field_names)
    prompts = texts
    with in_callers_words(field_names):
        if form != PromptForm():
            with service.reserve(len(texts), texts):
                prompts = [await _formed(service, text, form) for text in texts]
    whole = [_with(options, prompt) for prompt in prompts]
    run = service.run(f"embd-{uuid.uuid4().hex}", whole, params, field_names, whole=True)
    return await outputs(run, {})


def usage(finished: Sequence[RequestOutput]) -> PromptUsage:
    tokens = sum(len(output.prompt_token_ids) for output in finished)
    return PromptUsage(tokens, tokens)


def numbers(output: RequestOutput) -> list[float]:
    return list(output.vector or ())


def in_base64(output: RequestOutput) -> str:
    """As OpenAI's client reads it: float32, little-endian."""
    return base64.b64encode(memoryview(output.vector or b"")).decode()  # type: ignore[arg-type]


async def _formed(service: Service, text: Prompt, form: PromptForm) -> Prompt:
    assert not isinstance(text, Mapping), "what has a form is a text or its tokens"
    return await service.engine.text_prompt(text, form)


def _with(options: Mapping[str, object], prompt: Prompt) -> Prompt:
    return {**as_dict(prompt), **options} if options else prompt


def _check_size(
    service: Service, count: int, params: PoolingParams, field_names: Mapping[str, str]
) -> None:
    pooler = service.input_processor.pooler
    width = 0 if pooler is None else params.dimensions or pooler.dimensions or pooler.width
    if not params.token_ids and not params.classify and count * width > _MOST_NUMBERS:
        field = field_names.get("prompt", "prompt")
        raise RequestError(
            f"an answer may hold at most {_MOST_NUMBERS:,} numbers; {count:,} vectors of {width:,} "
            f"would be more: send fewer texts in one request",
            field,
        )
