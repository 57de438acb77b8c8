"""Embeddings, scores and rankings, by the paths of all APIs that have them."""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request
from fastapi.responses import Response
from msgspec import UNSET, UnsetType
from pydantic import Field, model_validator

from quire.capabilities.pooling.scoring import Scoring
from quire.core.errors import RequestError
from quire.engine.input_processor import Prompt, as_dict
from quire.engine.outputs import RequestOutput
from quire.http.answers.rendering import Answer, Json, Many, json_response, respond
from quire.http.body_fields import (
    MOST_TEXTS,
    Listed,
    Strict,
    Texts,
    at_most,
    between,
    doc,
    expecting,
    in_callers_words,
    most_tokens,
    texts_of,
)
from quire.http.doors.llama_cpp import AnyPrompts, joined, prompts_of
from quire.http.doors.ollama import OllamaBody
from quire.http.doors.turn_stream import outputs
from quire.http.guards.envelope import new_id
from quire.http.openai.requests import CommonFields
from quire.http.openapi import body_route, gives
from quire.http.service import Caller, ModelChoice, Service
from quire.text.encoder import PromptForm
from quire.text.params import PoolingParams
from quire.text.params.parameters import MAX_INTEGER


class PromptUsage(Answer):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: Literal[0] = 0


class _ForTexts(Answer, kw_only=True):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    usage: PromptUsage
    warnings: list[str] | UnsetType = UNSET


class Embedding(Answer, kw_only=True):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingList(_ForTexts, kw_only=True):
    data: Many[Embedding]


class Score(Answer, kw_only=True):
    object: Literal["score"] = "score"
    index: int
    score: float


class ScoreList(_ForTexts, kw_only=True):
    data: list[Score]


class RankedText(Answer):
    text: str


class Ranked(Answer):
    index: int
    relevance_score: float
    document: RankedText | UnsetType = UNSET


class Reranked(Answer, kw_only=True):
    """The documents, the best first."""

    id: str
    object: Literal["list"] = "list"
    model: str
    usage: PromptUsage
    results: list[Ranked]
    warnings: list[str] | UnsetType = UNSET


class TeiRanked(Answer):
    """One of the texts; the answer is a list of them, the best first."""

    index: int
    score: float
    text: str | UnsetType = UNSET


class OllamaEmbeddings(Answer):
    model: str
    embeddings: Many[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int
    warnings: list[str] | UnsetType = UNSET


class OllamaEmbedding(Answer):
    embedding: list[float]
    warnings: list[str] | UnsetType = UNSET


class LlamaCppEmbedding(Answer):
    """Of one text; each text's answer stands in a list."""

    index: int
    embedding: list[list[float]]


_Pair = Annotated[str | Texts, expecting("a string or a list of strings")]
_Most = Annotated[int, between(-1, MAX_INTEGER)] | None
_ABOUT_MOST = "cut longer texts, or pairs of texts, to this many tokens; -1: to as many as fit"


class _TextsRequest(CommonFields):
    """What requests have in common beside their texts."""

    truncate_prompt_tokens: _Most = doc(None, _ABOUT_MOST)
    truncation_side: Literal["left", "right"] = doc(
        "right", "where they are cut; right: the first tokens are kept"
    )

    def cut(self, max_model_len: int | None) -> PromptForm:
        """How long texts become shorter prompts: the special tokens around a text stay."""
        most = most_tokens(self.truncate_prompt_tokens, max_model_len)
        return PromptForm() if most is None else cut_to(most, self.truncation_side)


class EmbeddingRequest(_TextsRequest):
    """The body of POST /v1/embeddings."""

    input: AnyPrompts = doc(
        ..., "one or several texts, or their tokens", examples=["Once upon a time"]
    )
    encoding_format: Literal["float", "base64"] = doc(
        "float", "base64: of the numbers' bytes, float32, little-endian"
    )
    dimensions: int | None = doc(None, "how long vectors are, for models that allow for it", ge=1)
    normalize: bool | None = doc(None, "to length 1; left out, as the model's files say")
    add_special_tokens: bool | None = doc(None, "add the tokenizer's around texts; left out, yes")

    def texts(self) -> list[Any]:
        return prompts_of("input", self.input)

    @property
    def params(self) -> PoolingParams:
        return PoolingParams(normalize=self.normalize, dimensions=self.dimensions)

    def form(self, max_model_len: int | None) -> PromptForm:
        added = None if self.add_special_tokens is not False else False
        return replace(self.cut(max_model_len), add_special_tokens=added)


class ScoreRequest(_TextsRequest):
    """The body of POST /v1/score: pairs of texts, or one text and several others."""

    text_1: _Pair | None = doc(None, "the first texts of pairs, or one for all", examples=["Hi"])
    text_2: _Pair | None = doc(None, "the second texts of pairs", examples=[["Hello", "Bye"]])
    queries: _Pair | None = doc(None, "text_1 by another name")
    documents: _Pair | None = doc(None, "text_2 by another name")

    @model_validator(mode="after")
    def _check(self) -> ScoreRequest:
        for name, other in (("text_1", "queries"), ("text_2", "documents")):
            if (getattr(self, name) is None) == (getattr(self, other) is None):
                raise RequestError(f"one of {name} and {other} must be given", name)
        return self

    def pairs(self) -> tuple[list[str], list[str]]:
        first: Any = self.queries if self.text_1 is None else self.text_1
        second: Any = self.documents if self.text_2 is None else self.text_2
        return texts_of("text_1", first), texts_of("text_2", second)


class Document(Strict):
    """Of a rerank request, where it is no plain text."""

    text: str


class RerankRequest(_TextsRequest):
    """The body of POST /v1/rerank, as Cohere's and Jina's clients send it."""

    query: str = doc(..., "what is looked for", examples=["a bird that swims"])
    documents: Annotated[
        Listed[Annotated[str | Document, expecting('a text or {"text": ...}')]],
        at_most(MOST_TEXTS, "documents"),
    ] = doc([], "among what", examples=[["A penguin.", "A stone."]])
    top_n: Annotated[int, between(0, MAX_INTEGER)] = doc(
        0, "how many to give, the best ones; 0: all"
    )
    return_documents: bool = doc(True, "return the documents with their scores")
    texts_: Annotated[Texts, at_most(MOST_TEXTS, "texts")] | None = Field(
        None, alias="texts", description="documents, as TEI has them: the answer is TEI's too"
    )
    return_text: bool = doc(False, "of texts: return them with their scores")
    raw_scores: Literal[False] = doc(False, "of texts: scores are from 0 to 1")
    truncate: bool = doc(False, "of texts: truncate_prompt_tokens: -1")

    @model_validator(mode="after")
    def _check(self) -> RerankRequest:
        if self.texts_ is not None and self.documents:
            raise RequestError("texts and documents cannot be given together", "documents")
        if self.truncate and self.truncate_prompt_tokens is None:
            self.truncate_prompt_tokens = -1
        return self

    @property
    def field(self) -> str:
        """The name of the field with the texts."""
        return "documents" if self.texts_ is None else "texts"

    def texts(self) -> list[str]:
        if self.texts_ is not None:
            return texts_of("texts", self.texts_)
        texts = [one if isinstance(one, str) else one.text for one in self.documents]
        return texts_of("documents", texts)


class OllamaEmbedRequest(OllamaBody):
    """The body of Ollama's POST /api/embed."""

    input: Annotated[str | Texts, expecting("a string or a list of strings")] = ""
    truncate: bool = True
    dimensions: int | None = None


class OllamaEmbeddingsRequest(OllamaBody):
    """The body of Ollama's older POST /api/embeddings."""

    prompt: str = ""


class LlamaCppEmbeddingRequest(Strict):
    """The body of llama.cpp's POST /embedding."""

    model: str | None = None
    content: AnyPrompts | None = None
    input: AnyPrompts | None = None
    embd_normalize: int = 2
    id_slot: int | None = None  # places have nothing of their own here

    @model_validator(mode="after")
    def _check_one(self) -> LlamaCppEmbeddingRequest:
        if (self.content is None) == (self.input is None):
            raise RequestError("one of content and input must be given", "content")
        if self.embd_normalize not in (-1, 2):
            raise RequestError(
                f"embd_normalize must be -1 (none) or 2 (Euclidean), got {self.embd_normalize}",
                "embd_normalize",
            )
        return self

    def texts(self) -> list[Any]:
        given = ("content", self.content) if self.input is None else ("input", self.input)
        return prompts_of(*given)


def cut_to(most: int, side: Literal["left", "right"] = "right") -> PromptForm:
    """The form of a text for a vector or a score: no door has another."""
    return PromptForm(most=most, keep_first=side == "right", keep_special=True)


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
    @body_route(app, service, EmbeddingRequest, gives(EmbeddingList), "/v1/embeddings")
    async def embeddings(http: Request, request: EmbeddingRequest) -> Response:
        """The vectors of one or several texts."""
        caller, model = service.caller(http), service.model_of(request.model, request.warnings)
        finished = await vectors(
            service,
            await _joined(service, request.texts()),
            request.params,
            request.options(caller, model),
            {"prompt": "input", "client": "user"},
            request.form(service.input_processor.max_model_len),
        )
        spelled = in_base64 if request.encoding_format == "base64" else numbers

        def build() -> EmbeddingList:
            head = _head("embd-", request, caller, model.name, finished)
            data = (Embedding(index=i, embedding=spelled(one)) for i, one in enumerate(finished))
            return EmbeddingList(**head, created=int(time.time()), data=data)

        return await json_response(build, large=True)


def _add_scores(app: FastAPI, service: Service) -> None:
    @body_route(app, service, ScoreRequest, gives(ScoreList), "/v1/score", "/score")
    async def score(http: Request, request: ScoreRequest) -> Response:
        """vLLM's: how well texts go together, pair by pair, or one with each of several."""
        caller, model = service.caller(http), service.model_of(request.model, request.warnings)
        finished, scores = await _scores(
            service, *request.pairs(), request, caller, model, "text_1"
        )
        head = _head("score-", request, caller, model.name, finished)
        data = [Score(index=i, score=one) for i, one in enumerate(scores)]
        return respond(ScoreList(**head, created=int(time.time()), data=data))

    @body_route(
        app,
        service,
        RerankRequest,
        gives((Reranked, list[TeiRanked])),
        "/v1/rerank",
        "/v2/rerank",
        "/rerank",
        "/v1/reranking",
        "/reranking",
    )
    async def rerank(http: Request, request: RerankRequest) -> Response:
        """Cohere's, Jina's and TEI's: texts by how well they go with a query, the best first."""
        caller, model = service.caller(http), service.model_of(request.model, request.warnings)
        texts = request.texts()
        finished, scores = await _scores(
            service, [request.query], texts, request, caller, model, request.field
        )
        best = sorted(range(len(texts)), key=lambda i: -scores[i])[: request.top_n or None]
        if request.texts_ is not None:
            told = (texts[i] if request.return_text else UNSET for i in best)
            tei = [TeiRanked(i, scores[i], text) for i, text in zip(best, told, strict=True)]
            return respond(tei)
        results = [Ranked(i, scores[i]) for i in best]
        if request.return_documents:
            for one in results:
                one.document = RankedText(texts[one.index])
        ranking = Reranked(
            **_head("rerank-", request, caller, model.name, finished), results=results
        )
        return await json_response(lambda: ranking, large=True)


async def _scores(
    service: Service,
    first: Sequence[str],
    second: Sequence[str],
    request: ScoreRequest | RerankRequest,
    caller: Caller,
    model: ModelChoice,
    field: str,
) -> tuple[list[RequestOutput], list[float]]:
    names, processor = {"prompt": field, "client": "user"}, service.input_processor
    own, form = request.options(caller, model), request.cut(processor.max_model_len)
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
        "warnings": request.warnings or UNSET,
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
    whole = [{**as_dict(prompt), **options} for prompt in prompts]
    run = service.run(f"embd-{uuid.uuid4().hex}", whole, params, field_names, whole=True)
    return await outputs(run, {})


async def _joined(service: Service, texts: Sequence[Any]) -> Sequence[Prompt]:
    """The prompts, with tokens in place of texts that are among tokens."""
    if not any(isinstance(one, str) for text in texts if isinstance(text, list) for one in text):
        return texts
    with service.reserve(len(texts), texts):
        return [await joined(service, text) for text in texts]


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

    @body_route(
        app,
        service,
        LlamaCppEmbeddingRequest,
        gives(list[LlamaCppEmbedding]),
        "/embedding",
        "/embeddings",
    )
    async def embedding(http: Request, request: LlamaCppEmbeddingRequest) -> Response:
        """llama.cpp's: the vectors of one or several texts, in a list."""
        model = service.model_of(request.model, request.warnings)
        field = "content" if request.input is None else "input"
        params = PoolingParams(normalize=request.embd_normalize == 2)
        own = service.caller(http).options(model)
        with in_callers_words({"prompt": field}, in_text=True):
            texts = await _joined(service, request.texts())
            finished = await vectors(service, texts, params, own, {"prompt": field})
        answers = (LlamaCppEmbedding(i, [numbers(one)]) for i, one in enumerate(finished))
        return await json_response(lambda: answers, large=True)


def _add_ollama(app: FastAPI, service: Service) -> None:
    answers = gives(OllamaEmbeddings)

    @body_route(app, service, OllamaEmbedRequest, answers, "/api/embed", from_tools=True)
    async def embed(http: Request, request: OllamaEmbedRequest) -> Response:
        """Ollama's: the vectors of one or several texts, of length 1."""
        begun = time.perf_counter_ns()
        model = request.asks(service)
        context = request.context_of(service.input_processor.max_model_len)
        longest = context.length if request.truncate else None
        form = PromptForm() if longest is None else cut_to(longest)
        params = PoolingParams(normalize=True, dimensions=request.dimensions)
        own = service.caller(http).options(model)
        texts = texts_of("input", request.input) if request.input else []  # none: it is to load
        with in_callers_words({"prompt": "input"}, in_text=True):
            finished = await vectors(service, texts, params, own, {}, form) if texts else []
            for one in finished:
                context.check(len(one.prompt_token_ids), "prompt")
        took, count = time.perf_counter_ns() - begun, usage(finished).prompt_tokens
        embeddings = map(numbers, finished)
        warnings = request.warnings or UNSET
        answer = OllamaEmbeddings(request.model, embeddings, took, 0, count, warnings)
        return await json_response(lambda: answer, large=True)

    @body_route(
        app,
        service,
        OllamaEmbeddingsRequest,
        gives(OllamaEmbedding),
        "/api/embeddings",
        from_tools=True,
    )
    async def embeddings(http: Request, request: OllamaEmbeddingsRequest) -> Response:
        """Ollama's older one: the vector of a text, as the model's files say."""
        model = request.asks(service)
        context = request.context_of(service.input_processor.max_model_len)
        if not request.prompt:
            return respond(OllamaEmbedding([], request.warnings or UNSET))
        own = service.caller(http).options(model)
        (done,) = await vectors(service, [request.prompt], PoolingParams(), own, {})
        context.check(len(done.prompt_token_ids), "prompt")
        return respond(OllamaEmbedding(numbers(done), request.warnings or UNSET))
