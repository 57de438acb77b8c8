"""Embeddings, scores and rankings, by the paths of all APIs that have them."""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from quire.core.errors import RequestError
from quire.core.protocol import PoolingParams
from quire.engine.outputs import RequestOutput
from quire.engine.prompts import Prompt, as_dict
from quire.engine.scoring import Scoring
from quire.http.answers.rendering import Json, json_response, respond
from quire.http.description.openapi import gives, takes
from quire.http.doors.answering import in_their_words, outputs
from quire.http.doors.ollama_models import check_model
from quire.http.errors import in_callers_words, new_id
from quire.http.guards.clients import Caller
from quire.http.service import ModelChoice, Service
from quire.http.vectors.answers import (
    Embedding,
    EmbeddingList,
    LlamaCppEmbedding,
    OllamaEmbedding,
    OllamaEmbeddings,
    PromptUsage,
    Ranked,
    RankedText,
    Reranked,
    Score,
    ScoreList,
)
from quire.http.vectors.bodies import (
    EmbeddingRequest,
    LlamaCppEmbeddingRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    RerankRequest,
    ScoreRequest,
    cut_to,
    texts_of,
)
from quire.text.prompt_form import PromptForm

_NOT_HERE = "/pooling", "/classify", "/v1/classify"
_MOST_NUMBERS = 2**23  # in an answer: 2,048 vectors of 4,096, some 170 MB of JSON


def add_vectors(app: FastAPI, service: Service) -> None:
    _add_embeddings(app, service)
    _add_scores(app, service)
    _add_others(app, service)
    for path in _NOT_HERE:
        app.post(path, responses=gives(EmbeddingList, None, 400))(_refuse)


async def _refuse() -> None:
    """vLLM's, of models with heads that classify: not served."""
    raise RequestError(
        "states and classes are not served: use /v1/embeddings, /v1/score or /v1/rerank", "model"
    )


def _add_embeddings(app: FastAPI, service: Service) -> None:
    @app.post(
        "/v1/embeddings", openapi_extra=takes(EmbeddingRequest), responses=gives(EmbeddingList)
    )
    async def embeddings(http: Request) -> Response:
        """The vectors of one or several texts."""
        request = await service.bodies.parse(http, EmbeddingRequest)
        caller, asked = service.caller(http), service.check_model(request.model)
        finished = await vectors(
            service,
            request.texts(),
            request.params,
            request.options(caller, asked.options),
            {"prompt": "input", "client": "user"},
            request.form(service.input_processor.max_model_len),
        )
        told = in_base64 if request.encoding_format == "base64" else numbers

        def build() -> EmbeddingList:
            head = _head("embd-", request, caller, asked.name, finished)
            data = (Embedding(index=i, embedding=told(one)) for i, one in enumerate(finished))
            return EmbeddingList(**head, created=int(time.time()), data=data)

        return await json_response(build, large=True)


def _add_scores(app: FastAPI, service: Service) -> None:
    @app.post("/v1/score", openapi_extra=takes(ScoreRequest), responses=gives(ScoreList))
    @app.post("/score", openapi_extra=takes(ScoreRequest), responses=gives(ScoreList))
    async def score(http: Request) -> Response:
        """vLLM's: how well texts go together, pair by pair, or one with each of several."""
        request = await service.bodies.parse(http, ScoreRequest)
        caller, asked = service.caller(http), service.check_model(request.model)
        finished, scores = await _scores(
            service, *request.pairs(), request, caller, asked, "text_1"
        )
        head = _head("score-", request, caller, asked.name, finished)
        data = [Score(index=i, score=one) for i, one in enumerate(scores)]
        return respond(ScoreList(**head, created=int(time.time()), data=data))

    @app.post("/v1/rerank", openapi_extra=takes(RerankRequest), responses=gives(Reranked))
    @app.post("/v2/rerank", openapi_extra=takes(RerankRequest), responses=gives(Reranked))
    @app.post("/rerank", openapi_extra=takes(RerankRequest), responses=gives(Reranked))
    @app.post("/v1/reranking", openapi_extra=takes(RerankRequest), responses=gives(Reranked))
    @app.post("/reranking", openapi_extra=takes(RerankRequest), responses=gives(Reranked))
    async def rerank(http: Request) -> Response:
        """Cohere's and Jina's: documents by how well they go with a query, the best first."""
        request = await service.bodies.parse(http, RerankRequest)
        caller, asked = service.caller(http), service.check_model(request.model)
        texts = request.texts()
        finished, scores = await _scores(
            service, [request.query], texts, request, caller, asked, "documents"
        )
        best = sorted(range(len(texts)), key=lambda i: -scores[i])[: request.top_n or None]
        results = [Ranked(i, scores[i]) for i in best]
        if request.return_documents:
            for one in results:
                one.document = RankedText(texts[one.index])
        ranking = Reranked(
            **_head("rerank-", request, caller, asked.name, finished), results=results
        )
        return await json_response(lambda: ranking, large=True)


async def _scores(
    service: Service,
    first: Sequence[str],
    second: Sequence[str],
    request: ScoreRequest | RerankRequest,
    caller: Caller,
    asked: ModelChoice,
    field: str,
) -> tuple[list[RequestOutput], list[float]]:
    names, processor = {"prompt": field, "client": "user"}, service.input_processor
    own, form = request.options(caller, asked.options), request.cut(processor.max_model_len)
    scoring = Scoring(processor.pooler, first, second, form.most)
    if scoring.cuts:
        if request.truncation_side == "left":
            raise RequestError(
                "this model judges pairs, which are cut at their ends: truncation_side must be "
                "right",
                "truncation_side",
            )
        form = PromptForm()
    finished = await vectors(service, scoring.prompts, scoring.params, own, names, form)
    return finished, scoring.scores(finished)


def _head(
    prefix: str, request: Any, caller: Caller, model: str, finished: Sequence[RequestOutput]
) -> Json:
    return {
        "id": prefix + (request.request_id or caller.request_id or new_id()),
        "model": model,
        "usage": usage(finished),
    }


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


def _add_others(app: FastAPI, service: Service) -> None:
    _add_ollama(app, service)
    taken = takes(LlamaCppEmbeddingRequest)

    @app.post("/embedding", openapi_extra=taken, responses=gives(list[LlamaCppEmbedding]))
    @app.post("/embeddings", openapi_extra=taken, responses=gives(list[LlamaCppEmbedding]))
    async def embedding(http: Request) -> Response:
        """llama.cpp's: the vectors of one or several texts, in a list."""
        request = await service.bodies.parse(http, LlamaCppEmbeddingRequest)
        asked = service.check_model(request.model)
        field = "content" if request.input is None else "input"
        params = PoolingParams(normalize=request.embd_normalize == 2)
        own = service.caller(http).options(asked.options)
        with in_their_words({"prompt": field}):
            finished = await vectors(service, request.texts(), params, own, {"prompt": field})
        told = (LlamaCppEmbedding(i, [numbers(one)]) for i, one in enumerate(finished))
        return await json_response(lambda: told, large=True)


def _add_ollama(app: FastAPI, service: Service) -> None:
    @app.post(
        "/api/embed", openapi_extra=takes(OllamaEmbedRequest), responses=gives(OllamaEmbeddings)
    )
    async def embed(http: Request) -> Response:
        """Ollama's: the vectors of one or several texts, of length 1."""
        begun = time.perf_counter_ns()
        request = await service.bodies.parse(http, OllamaEmbedRequest, from_tools=True)
        asked = check_model(service, request.model)
        request.options.check_context(service.input_processor.max_model_len)
        longest = service.input_processor.max_model_len if request.truncate else None
        form = PromptForm() if longest is None else cut_to(longest)
        params = PoolingParams(normalize=True, dimensions=request.dimensions)
        own = service.caller(http).options(asked.options)
        texts = texts_of("input", request.input) if request.input else []  # none: it is to load
        with in_their_words({"prompt": "input"}):
            finished = await vectors(service, texts, params, own, {}, form) if texts else []

        took, count = time.perf_counter_ns() - begun, usage(finished).prompt_tokens
        embeddings = map(numbers, finished)
        told = OllamaEmbeddings(request.model, embeddings, took, 0, count)
        return await json_response(lambda: told, large=True)

    @app.post(
        "/api/embeddings",
        openapi_extra=takes(OllamaEmbeddingsRequest),
        responses=gives(OllamaEmbedding),
    )
    async def embeddings(http: Request) -> Response:
        """Ollama's older one: the vector of a text, as the model's files say."""
        request = await service.bodies.parse(http, OllamaEmbeddingsRequest, from_tools=True)
        asked = check_model(service, request.model)
        request.options.check_context(service.input_processor.max_model_len)
        if not request.prompt:
            return respond(OllamaEmbedding([]))
        own = service.caller(http).options(asked.options)
        (done,) = await vectors(service, [request.prompt], PoolingParams(), own, {})
        return respond(OllamaEmbedding(numbers(done)))
