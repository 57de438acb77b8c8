"""The parts that decoders are made of, as functions of tensors: no modules, no gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Linear:
    """x [..., in] -> [..., out]."""

    weight: Tensor  # [out, in]
    bias: Tensor | None = None  # [out]

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class RMSNorm:
    """x / sqrt(mean(x²) + eps) * weight over the last dimension (Zhang and Sennrich, 2019)."""

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


@dataclass(frozen=True)
class LayerNorm:
    """(x - mean) / sqrt(variance + eps) over the last dimension, then weight and bias if any."""

    width: int
    weight: Tensor | None
    bias: Tensor | None
    eps: float = 1e-5

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (self.width,), self.weight, self.bias, self.eps)


@dataclass(frozen=True)
class GatedMLP:
    """down(activation(gate(x)) * up(x)) (Shazeer, "GLU variants improve Transformer", 2020)."""

    gate: Linear
    up: Linear
    down: Linear
    activation: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.gate(x)) * self.up(x))


_gelu_tanh: Callable[[Tensor], Tensor] = partial(F.gelu, approximate="tanh")

# By the names that configs use.
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "relu": torch.relu,
    "silu": F.silu,
}
