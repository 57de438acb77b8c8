"""What answers hold, as /docs and /openapi.json tell it. Nothing is made from these types."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PromptUsage(_Answer):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: Literal[0]


class Embedding(_Answer):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(_Answer):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Embedding]
    usage: PromptUsage


class Score(_Answer):
    object: Literal["score"]
    index: int
    score: float


class ScoreList(_Answer):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Score]
    usage: PromptUsage


class RankedText(_Answer):
    text: str


class Ranked(_Answer):
    index: int
    relevance_score: float
    document: RankedText | None = None


class Ranking(_Answer):
    """The documents, the best first."""

    id: str
    object: Literal["list"]
    model: str
    results: list[Ranked]
    usage: PromptUsage


class OllamaEmbeddings(_Answer):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaEmbedding(_Answer):
    embedding: list[float]


class LlamaCppEmbedding(_Answer):
    """Of one text; each text's answer stands in a list."""

    index: int
    embedding: list[list[float]]
