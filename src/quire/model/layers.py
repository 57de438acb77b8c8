"""The parts that decoders are made of, as functions of tensors: no modules, no gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.kernels.ops import Kernels


@dataclass(frozen=True)
class Linear:
    """x [..., in] -> [..., out]."""

    weight: Tensor  # [out, in]
    bias: Tensor | None = None  # [out]

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    @staticmethod
    def joined(parts: Sequence[Linear]) -> Linear:
        """One projection that gives what ``parts`` give, side by side."""
        biases = [part.bias for part in parts if part.bias is not None]
        assert len(biases) in (0, len(parts)), "all have a bias, or none"
        weight = torch.cat([part.weight for part in parts])
        return Linear(weight, torch.cat(biases) if biases else None)


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
