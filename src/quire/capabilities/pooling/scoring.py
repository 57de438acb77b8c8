"""How well texts go together: by the angle between their vectors, or as a model judges pairs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from quire.capabilities.pooling.pooler import Pooler
from quire.core.errors import RequestError
from quire.text.params import PoolingParams

Text = str | list[int]
_Prompt = Text | Mapping[str, Any]


class Pooled(Protocol):
    """A finished request."""

    @property
    def vector(self) -> Sequence[float] | None: ...


_Pooled = TypeVar("_Pooled", bound=Pooled)


class Scoring:
    """Pairs of texts, the prompts that their scores take, and the scores.

    A model that judges reads each pair as one prompt. One with a head that classifies has it from
    its tokenizer's template for pairs; its score is the logit of its one label, or the chance that
    is made of it. Of others it is the first text and then the second, and the score is the chance
    of yes against no as the next token. The rest make a vector of each text, and each only once;
    the score is the cosine.
    """

    def __init__(
        self,
        pooler: Pooler | None,
        first: Sequence[Text],
        second: Sequence[Text],
        most: int | None = None,
    ) -> None:
        """Pair each of ``first`` with one of ``second``, or a single ``first`` with all of them.

        most: tokens to which pairs are cut, where a head judges them; None: they are not.
        """
        if len(first) not in (1, len(second)):
            raise RequestError(
                f"text_1 must hold one text, or as many as text_2, {len(second)}; got {len(first)}",
                "text_1",
            )
        self._pooler = pooler = pooler or Pooler(0)
        self._classes, self._labels = pooler.classes, pooler.labels
        self._pairs = [(i if len(first) > 1 else 0, i) for i in range(len(second))]
        self._num_first = len(first)
        if self._labels:
            _check_labels(self._labels)
            self.params = PoolingParams(classify=True)
            given = ((first[a], second[b]) for a, b in self._pairs)
            self.prompts: list[_Prompt] = [_as_pair(one, other, most) for one, other in given]
        elif self._classes is None:
            self.params = PoolingParams(normalize=True)
            self.prompts = [*first, *second]
        elif most is not None:
            raise RequestError(
                "this model judges pairs by what it would say next, and none can be cut",
                "truncate_prompt_tokens",
            )
        else:
            self.params = PoolingParams(token_ids=self._classes)
            self.prompts = [_joined(first[a], second[b]) for a, b in self._pairs]

    @property
    def cuts(self) -> bool:
        """Whether prompts are cut to ``most`` tokens."""
        return self._labels > 0

    def scores(self, finished: Sequence[Pooled]) -> list[float]:
        """One for each pair, of the finished prompts."""
        return [self.score(pair) for pair in self.pairs(finished)]

    def pairs(self, finished: Sequence[_Pooled]) -> list[tuple[_Pooled, ...]]:
        """The finished prompts that the score of each pair is made of."""
        if self._labels or self._classes is not None:
            return [(one,) for one in finished]
        return [(finished[a], finished[self._num_first + b]) for a, b in self._pairs]

    def score(self, pair: Sequence[Pooled]) -> float:
        """The score of one of ``pairs``."""
        vectors = [output.vector or () for output in pair]
        if self._labels:
            ((logit,),) = vectors
            return _sigmoid(logit) if self._pooler.chance else logit
        if self._classes is not None:
            ((no, yes),) = vectors
            return _sigmoid(yes - no)
        return _dot(*vectors)


def chances(logits: Sequence[float]) -> list[float]:
    """Probabilities of labels of which one is right; of a single label, that it holds."""
    if len(logits) == 1:
        logits = [logits[0], 0.0]
        return chances(logits)[:1]
    largest = max(logits)
    weights = [math.exp(logit - largest) for logit in logits]
    return [weight / sum(weights) for weight in weights]


def _check_labels(labels: int) -> None:
    if labels != 1:
        raise RequestError(
            f"this model classifies texts by {labels} labels; scores are of models with one",
            "model",
        )


def _as_pair(first: Text, second: Text, most: int | None) -> _Prompt:
    pair = {"prompt": first, "second": second}
    return pair if most is None else {**pair, "truncate_prompt_tokens": most}


def _joined(first: Text, second: Text) -> Text:
    if isinstance(first, str) and isinstance(second, str):
        return first + second
    if isinstance(first, str) or isinstance(second, str):
        raise RequestError("both texts of a pair must be strings, or both token ids", "text_2")
    return [*first, *second]


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
