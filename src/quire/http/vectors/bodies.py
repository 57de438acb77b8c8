"""The bodies of requests for vectors and scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from quire.core.errors import RequestError
from quire.core.protocol import PoolingParams
from quire.core.protocol.checks import MAX_INTEGER
from quire.http.doors.ollama_types import KeepAlive, OllamaOptions
from quire.http.fields.strict import (
    Ids,
    Strict,
    Texts,
    at_most,
    between,
    doc,
    expecting,
    most_tokens,
)
from quire.http.openai.requests import CommonFields
from quire.text.prompt_form import PromptForm

MOST_TEXTS = 2048  # OpenAI's own maximum
_TEXTS = "a string, a list of strings, a list of token ids or a list of such lists"
_Input = Annotated[
    str | Texts | Ids | Annotated[list[Ids], Field(fail_fast=True)], expecting(_TEXTS)
]
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

    input: _Input = doc(..., "one or several texts, or their tokens", examples=["Once upon a time"])
    encoding_format: Literal["float", "base64"] = doc(
        "float", "base64: of the numbers' bytes, float32, little-endian"
    )
    dimensions: int | None = doc(None, "how long vectors are, for models that allow for it", ge=1)
    normalize: bool | None = doc(None, "to length 1; left out, as the model's files say")
    add_special_tokens: bool | None = doc(None, "add the tokenizer's around texts; left out, yes")

    def texts(self) -> list[str | list[int]]:
        return texts_of("input", self.input)

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
        list[Annotated[str | Document, expecting('a text or {"text": ...}')]],
        Field(fail_fast=True),
        at_most(MOST_TEXTS, "documents"),
    ] = doc(..., "among what", examples=[["A penguin.", "A stone."]])
    top_n: Annotated[int, between(0, MAX_INTEGER)] = doc(
        0, "how many to give, the best ones; 0: all"
    )
    return_documents: bool = doc(True, "give the documents beside their scores")

    def texts(self) -> list[str]:
        texts = [one if isinstance(one, str) else one.text for one in self.documents]
        return texts_of("documents", texts)


class OllamaEmbedRequest(Strict):
    """The body of Ollama's POST /api/embed."""

    model: str
    input: Annotated[str | Texts, expecting("a string or a list of strings")] = ""
    truncate: bool = True
    dimensions: int | None = None
    options: OllamaOptions = OllamaOptions()
    keep_alive: KeepAlive | None = None


class OllamaEmbeddingsRequest(Strict):
    """The body of Ollama's older POST /api/embeddings."""

    model: str
    prompt: str = ""
    options: OllamaOptions = OllamaOptions()
    keep_alive: KeepAlive | None = None


class LlamaCppEmbeddingRequest(Strict):
    """The body of llama.cpp's POST /embedding."""

    model: str | None = None
    content: _Input | None = None
    input: _Input | None = None
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

    def texts(self) -> list[str | list[int]]:
        return texts_of("content", self.content if self.input is None else self.input)


def cut_to(most: int, side: Literal["left", "right"] = "right") -> PromptForm:
    """The form of a text for a vector or a score: no door has another."""
    return PromptForm(most=most, keep_first=side == "right", keep_special=True)


def texts_of(field: str, given: Any) -> list[Any]:
    """One or several texts as a list; RequestError for none, and for too many."""
    if not given:
        raise RequestError(f"{field} must not be empty", field)
    texts = [given] if isinstance(given, str) or isinstance(given[0], int) else list(given)
    if len(texts) > MOST_TEXTS:
        raise RequestError(f"{field} may hold at most {MOST_TEXTS:,} texts", field)
    return texts
