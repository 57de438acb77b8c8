"""Activations in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.kernels.ops import CLAMPED_SWIGLU

_gelu_tanh: Callable[[Tensor], Tensor] = partial(F.gelu, approximate="tanh")
_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "relu": torch.relu,
    "silu": F.silu,
}


def activate(x: Tensor, activation: str, gated: bool) -> Tensor:
    """See ``Kernels.activate``."""
    if activation == CLAMPED_SWIGLU:
        gate, up = x.chunk(2, dim=-1)
        gate, up = gate.clamp(max=7), up.clamp(-7, 7)
        return gate * torch.sigmoid(1.702 * gate) * (up + 1)
    function = _ACTIVATIONS[activation]
    if not gated:
        return function(x)
    gate, up = x.chunk(2, dim=-1)
    return function(gate) * up
