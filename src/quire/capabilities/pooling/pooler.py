"""What vectors a model gives, by its files: what a request leaves open is filled in with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from quire.core.errors import RequestError
from quire.text.params import Pooling, PoolingParams
from quire.text.params.parameters import check_integer


@dataclass(frozen=True)
class Pooler:
    """What vectors a model gives where a request does not say.

    width: numbers of a state. dimensions: of a vector. shorter: the lengths to which vectors may be
    cut, as the model was trained for (Matryoshka); None: any. classes: tokens for no and yes, of a
    model that judges pairs of texts by what it would say next. labels: of a head that classifies,
    in whose place there are no vectors; chance: whether the score of a pair is the sigmoid of its
    logit, and not the logit itself. ending: tokens after a text, beside those that the tokenizer
    writes. why_not: there are no vectors.
    """

    width: int
    pooling: Pooling = Pooling.LAST
    normalize: bool = True
    dimensions: int | None = None
    shorter: Sequence[int] | None = ()
    classes: tuple[int, int] | None = None
    labels: int = 0
    chance: bool = True
    ending: tuple[int, ...] = ()
    why_not: str = ""

    def filled(self, params: PoolingParams) -> PoolingParams:
        """``params`` with all that they leave open. RequestError: the model has no such vectors."""
        if self.labels or params.classify:
            self._check_judge(params)
            return params
        if self.why_not and params.pooling is None and not params.token_ids:
            raise RequestError(f"this model gives no embeddings: {self.why_not}", "model")
        pooling = self.pooling if params.pooling is None else params.pooling
        normalize = self.normalize if params.normalize is None else params.normalize
        dimensions = params.dimensions
        if dimensions is None:
            dimensions = self.dimensions
        elif dimensions != self.width:
            self._check(dimensions)
        return PoolingParams(pooling, normalize, dimensions, params.token_ids)

    def with_dimensions(self, dimensions: int | None) -> Pooler:
        return replace(self, dimensions=dimensions)

    def _check_judge(self, params: PoolingParams) -> None:
        if not self.labels:
            raise RequestError("this model has no head that classifies", "model")
        if not params.classify:
            raise RequestError(
                "this model classifies texts and gives no embeddings: it is asked for scores "
                "(/v1/score, /v1/rerank, LLM.score)",
                "model",
            )

    def _check(self, dimensions: int) -> None:
        if self.shorter is None:
            check_integer("dimensions", dimensions, 1, self.width)
        elif not self.shorter:
            raise RequestError(
                f"dimensions must be {self.width}: this model's config does not say that its "
                "vectors may be cut (is_matryoshka; where they may, start with --hf-overrides "
                "'{\"is_matryoshka\": true}')",
                "dimensions",
            )
        elif dimensions not in self.shorter:
            allowed = ", ".join(map(str, sorted({*self.shorter, self.width})))
            raise RequestError(
                f"dimensions must be one of {allowed}, got {dimensions}", "dimensions"
            )
