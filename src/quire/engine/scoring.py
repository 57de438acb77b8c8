"""How well texts go together: by the angle between their vectors, or as a model judges pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from quire.engine.outputs import RequestOutput
from quire.errors import RequestError
from quire.protocol import Pooler, PoolingParams

Text = str | list[int]


class Scoring:
    """Pairs of texts, the prompts that their scores take, and the scores.

    A model that judges reads each pair as one prompt, the first text and then the second; its score
    is the chance of yes against no as the next token. Others make a vector of each text, and each
    only once; the score is the cosine.
    """

    def __init__(
        self, pooler: Pooler | None, first: Sequence[Text], second: Sequence[Text]
    ) -> None:
        """As many of both, or one of ``first`` for all of ``second``."""
        if len(first) not in (1, len(second)):
            raise RequestError(
                f"text_1 must hold one text, or as many as text_2, {len(second)}; got {len(first)}",
                "text_1",
            )
        self._classes = None if pooler is None else pooler.classes
        self._pairs = [(i if len(first) > 1 else 0, i) for i in range(len(second))]
        self._num_first = len(first)
        if self._classes is None:
            self.params = PoolingParams(normalize=True)
            self.prompts: list[Text] = [*first, *second]
        else:
            self.params = PoolingParams(token_ids=self._classes)
            self.prompts = [_joined(first[a], second[b]) for a, b in self._pairs]

    def scores(self, finished: Sequence[RequestOutput]) -> list[float]:
        """One for each pair, of the finished prompts."""
        vectors = [output.vector or () for output in finished]
        if self._classes is not None:
            return [_sigmoid(yes - no) for no, yes in vectors]
        return [_dot(vectors[a], vectors[self._num_first + b]) for a, b in self._pairs]


def _joined(first: Text, second: Text) -> Text:
    if isinstance(first, str) and isinstance(second, str):
        return first + second
    if isinstance(first, str) or isinstance(second, str):
        raise RequestError("both texts of a pair must be texts, or both token ids", "text_2")
    return [*first, *second]


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
