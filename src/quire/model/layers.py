"""The parts that decoders are made of, as functions of tensors: no modules, no gradients."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from quire.kernels.ops import Kernels
from quire.model.linear import Linear


@dataclass(frozen=True)
class MLP:
    """down(activation(up(x))).

    ``gated``: ``up`` gives two halves, and it is down(activation(first) * second) (Shazeer, "GLU
    variants improve Transformer", 2020).
    """

    up: Linear
    down: Linear
    activation: str
    gated: bool

    def __call__(self, x: Tensor, kernels: Kernels) -> Tensor:
        return self.down(kernels.activate(self.up(x), self.activation, self.gated))
