"""What a request may want of its prompt in place of tokens: a vector, or scores of some tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from quire.core.errors import RequestError, shown
from quire.core.protocol import Request
from quire.text.params.parameters import check_integer, check_token_ids

_MOST_CLASSES = 1_024


class Pooling(str, Enum):
    """Of which tokens' states a text's vector is made."""

    LAST = "LAST"
    MEAN = "MEAN"  # of all of them
    CLS = "CLS"  # the first
    MAX = "MAX"  # of each number, the largest


@dataclass(frozen=True)
class PoolingParams:
    """How a text becomes a vector, in vLLM's names. What is None, the model's files decide.

    pooling: of which tokens. normalize: to length 1. dimensions: how many numbers, the first ones.
    token_ids: the logits of these tokens after the last one, in place of a vector of states.
    classify: what the model's head that classifies says, in place of that: its logits.
    """

    pooling: Pooling | None = None
    normalize: bool | None = None
    dimensions: int | None = None
    token_ids: Sequence[int] = ()
    classify: bool = False

    def __post_init__(self) -> None:
        if self.pooling is not None and not isinstance(self.pooling, Pooling):
            object.__setattr__(self, "pooling", pooling_of(self.pooling))
        if self.normalize not in (None, True, False):
            raise RequestError(
                f"normalize must be true or false, got {shown(self.normalize)}", "normalize"
            )
        if self.dimensions is not None:
            check_integer("dimensions", self.dimensions, 1)
        ids = check_token_ids("token_ids", self.token_ids, most=_MOST_CLASSES)
        object.__setattr__(self, "token_ids", ids)

    @property
    def needs_all_rows(self) -> bool:
        """Whether a beginning that others have computed cannot stand in for its own."""
        return not self.token_ids and self.pooling is not Pooling.LAST


def pooling_params_of(request: Request) -> PoolingParams | None:
    """How the request wants a vector to be made, if it does."""
    pooling = request.pooling
    assert pooling is None or isinstance(pooling, PoolingParams)
    return pooling


def pooling_of(name: object) -> Pooling:
    """By its name, of any case. RequestError for another."""
    if isinstance(name, str) and name.upper() in Pooling.__members__:
        return Pooling[name.upper()]
    known = ", ".join(Pooling.__members__)
    raise RequestError(f"pooling must be one of {known}, got {shown(name)}", "pooling")
