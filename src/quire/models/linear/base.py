"""The interface of a projection for decoders, and the plain one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class Linear(Protocol):
    """x [rows, in] -> x weightᵀ + bias [rows, out]."""

    @property
    def nbytes(self) -> int:
        """Memory that weight and bias take."""
        ...

    def __call__(self, x: Tensor) -> Tensor:
        """x and the result are of the dtype that the model computes in."""
        ...

    def floats(self, x: Tensor) -> Tensor:
        """The result in float32."""
        ...

    def rows(self, outputs: Tensor, dtype: torch.dtype) -> Tensor:
        """The weights of some outputs, ids [n] -> [n, in]: an embedding that shares the weight."""
        ...


@dataclass(frozen=True)
class PlainLinear:
    """A ``Linear``: the weight as PyTorch multiplies it, of any dtype."""

    weight: Tensor  # [out, in]
    bias: Tensor | None = None  # [out]

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def floats(self, x: Tensor) -> Tensor:
        return self(x.to(torch.promote_types(x.dtype, self.weight.dtype))).float()

    def rows(self, outputs: Tensor, dtype: torch.dtype) -> Tensor:
        return torch.embedding(self.weight, outputs).to(dtype)


@dataclass(frozen=True, eq=False)
class WatchedLinear:
    """A ``Linear`` that is read for each product, and notes inputs and weights of it."""

    read: Callable[[], Linear]
    inputs: Tensor  # [in] float32: squares of them so far, added up
    weights: Tensor  # [in] float32: mean squares of each input's weights

    @property
    def nbytes(self) -> int:
        """See ``Linear.nbytes``: none is kept."""
        return 0

    def __call__(self, x: Tensor) -> Tensor:
        found = self.read()
        assert isinstance(found, PlainLinear), "nothing is rounded as it is watched"
        self.inputs.add_(mean_squares(x), alpha=len(x))
        self.weights.copy_(mean_squares(found.weight))
        return found(x)

    def floats(self, x: Tensor) -> Tensor:
        return self(x).float()

    def rows(self, outputs: Tensor, dtype: torch.dtype) -> Tensor:
        return self.read().rows(outputs, dtype)


def mean_squares(numbers: Tensor) -> Tensor:
    """[n, in] -> [in] float32."""
    norms: Tensor = torch.linalg.vector_norm(numbers, dim=0, dtype=torch.float32)
    return norms.square() / len(numbers)


@dataclass(frozen=True)
class Joined:
    """Projections of the same x as one product, which gives their outputs side by side."""

    product: Linear
    parts: Mapping[str, int]  # outputs of each, in their order: whose rows of the weight are whose

    def split(self, out: Tensor) -> tuple[Tensor, ...]:
        """The product's result divided -> [rows, out] of each part: views of it."""
        return torch.split(out, list(self.parts.values()), dim=1)
