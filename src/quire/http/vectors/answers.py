"""The answers of all doors that give vectors and scores."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from quire.http.answers.rendering import Answer, Many


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


class OllamaEmbeddings(Answer):
    model: str
    embeddings: Many[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaEmbedding(Answer):
    embedding: list[float]


class LlamaCppEmbedding(Answer):
    """Of one text; each text's answer stands in a list."""

    index: int
    embedding: list[list[float]]
