"""Embeddings by Ollama's API and by llama.cpp's own."""

from __future__ import annotations

import time

from fastapi import FastAPI, Request
from fastapi.responses import Response

from quire.core.protocol import PoolingParams
from quire.http.answers.rendering import json_response, respond
from quire.http.description.openapi import gives, takes
from quire.http.doors.answering import in_their_words
from quire.http.doors.ollama_models import check_model
from quire.http.service import Service
from quire.http.vectors.answers import LlamaCppEmbedding, OllamaEmbedding, OllamaEmbeddings
from quire.http.vectors.bodies import (
    LlamaCppEmbeddingRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    cut_to,
    texts_of,
)
from quire.http.vectors.work import numbers, usage, vectors
from quire.text.prompt_form import PromptForm


def add_others(app: FastAPI, service: Service) -> None:
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
