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
    """The weight as PyTorch multiplies it, of any dtype."""

    weight: Tensor  # [out, in]
    bias: Tensor | None = None  # [out]

    @property
    def nbytes(self) -> int:
        """See ``Linear.nbytes``."""
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def __call__(self, x: Tensor) -> Tensor:
        """See ``Linear``."""
        return F.linear(x, self.weight, self.bias)

    def floats(self, x: Tensor) -> Tensor:
        """See ``Linear.floats``."""
        return self(x).float()

    def rows(self, outputs: Tensor, dtype: torch.dtype) -> Tensor:
        """See ``Linear.rows``."""
        return torch.embedding(self.weight, outputs).to(dtype)


@dataclass(frozen=True, eq=False)
class WatchedLinear:
    """A projection that is read whenever it multiplies, and notes how large its inputs are."""

    read: Callable[[], Linear]
    squares: Tensor  # [in] float32: of the inputs so far, added up

    @property
    def nbytes(self) -> int:
        """See ``Linear.nbytes``: none is kept."""
        return 0

    def __call__(self, x: Tensor) -> Tensor:
        """See ``Linear``."""
        self.squares.add_(x.float().square().sum(dim=0))
        return self.read()(x)

    def floats(self, x: Tensor) -> Tensor:
        """See ``Linear.floats``."""
        return self(x).float()

    def rows(self, outputs: Tensor, dtype: torch.dtype) -> Tensor:
        """See ``Linear.rows``."""
        return self.read().rows(outputs, dtype)


@dataclass(frozen=True)
class Joined:
    """Projections of the same x as one product, which gives their outputs side by side."""

    product: Linear
    parts: Mapping[str, int]  # outputs of each, in their order: whose rows of the weight are whose

    def split(self, out: Tensor) -> tuple[Tensor, ...]:
        """The product's result divided -> [rows, out] of each part: views of it."""
        return torch.split(out, list(self.parts.values()), dim=1)
