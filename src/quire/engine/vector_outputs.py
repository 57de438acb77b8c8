"""What ``LLM`` gives for a text that is asked for no tokens: a vector, or what is made of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from quire.core.errors import EngineError
from quire.engine.metrics import RequestMetrics
from quire.engine.outputs import RequestOutput

_Made = TypeVar("_Made")
_Self = TypeVar("_Self", bound="PoolingRequestOutput[Any]")


@dataclass
class EmbeddingOutput:
    """A text's vector."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass
class PoolingOutput:
    """A text's vector as a tensor."""

    data: Any


@dataclass
class ClassificationOutput:
    """How likely each of a model's labels is."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        return len(self.probs)


@dataclass
class ScoringOutput:
    """How well two texts go together."""

    score: float


class PoolingRequestOutput(Generic[_Made]):
    """A finished request.

    error: why it failed; others of the same call did not, and who asks for its outputs is told.
    """

    def __init__(
        self,
        request_id: str,
        outputs: _Made | None,
        prompt_token_ids: list[int],
        metrics: RequestMetrics,
        error: str | None = None,
    ) -> None:
        self.request_id, self.prompt_token_ids = request_id, prompt_token_ids
        self.metrics, self.error, self.finished = metrics, error, True
        self._outputs = outputs

    @classmethod
    def of(cls: type[_Self], done: RequestOutput, make: Callable[[Sequence[float]], Any]) -> _Self:
        """The result of a finished request. make: makes the output of its vector."""
        made = None if done.error is not None else make(done.vector or ())
        return cls(done.request_id, made, done.prompt_token_ids, done.metrics, done.error)

    @property
    def outputs(self) -> _Made:
        """The result. EngineError: the request failed."""
        if self._outputs is None:
            raise EngineError(self.error or "the request gave nothing")
        return self._outputs

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of the prompt that were found in the prefix cache."""
        return self.metrics.cached_tokens

    def __repr__(self) -> str:
        what = f"error={self.error!r}" if self._outputs is None else f"outputs={self._outputs!r}"
        return f"{type(self).__name__}(request_id={self.request_id!r}, {what})"


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """A finished request for a vector."""


class ClassificationRequestOutput(PoolingRequestOutput[ClassificationOutput]):
    """A finished request for a class."""


class ScoringRequestOutput(PoolingRequestOutput[ScoringOutput]):
    """A finished request for a score."""

    @classmethod
    def of_pair(
        cls, pair: Sequence[RequestOutput], score: Callable[[Sequence[RequestOutput]], float]
    ) -> ScoringRequestOutput:
        """The score of a pair, of the finished requests that it takes."""
        last, error = pair[-1], next((one.error for one in pair if one.error), None)
        made = None if error is not None else ScoringOutput(score(pair))
        return cls(last.request_id, made, last.prompt_token_ids, last.metrics, error)
