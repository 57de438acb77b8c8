"""POST /v1/embeddings, /v1/score and /v1/rerank, by all their paths."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from quire.core.errors import RequestError
from quire.engine.outputs import RequestOutput
from quire.engine.scoring import Scoring
from quire.http.answers.rendering import Json, json_response, respond
from quire.http.description.openapi import gives, takes
from quire.http.errors import new_id
from quire.http.guards.clients import Caller
from quire.http.service import ModelChoice, Service
from quire.http.vectors.answers import (
    Embedding,
    EmbeddingList,
    Ranked,
    RankedText,
    Reranked,
    Score,
    ScoreList,
)
from quire.http.vectors.bodies import EmbeddingRequest, RerankRequest, ScoreRequest
from quire.http.vectors.others import add_others
from quire.http.vectors.work import in_base64, numbers, usage, vectors
from quire.text.prompt_form import PromptForm

_NOT_HERE = "/pooling", "/classify", "/v1/classify"


def add_vectors(app: FastAPI, service: Service) -> None:
    _add_embeddings(app, service)
    _add_scores(app, service)
    add_others(app, service)
    for path in _NOT_HERE:
        app.post(path, responses=gives(EmbeddingList, None, 400))(_refuse)


async def _refuse() -> None:
    """vLLM's, of models with heads that classify: not served."""
    raise RequestError(
        "states and classes are not told: ask /v1/embeddings, /v1/score or /v1/rerank", "model"
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
