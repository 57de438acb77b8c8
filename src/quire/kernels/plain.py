"""Activations and mixtures of experts in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.kernels.ops import CLAMPED_SWIGLU, DenseMLP, Experts, Kernels

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


def mixed(x: Tensor, experts: Experts, kernels: Kernels) -> Tensor:
    """See ``Kernels.mix``, by these kernels' activations.

    Waits for the device, to know which experts were chosen.
    """
    logits = experts.router.floats(x)
    chosen, weights = route(logits[:, : len(experts.up)], experts.chosen, experts.renormalise)
    # By rank, and added up in that order.
    parts = torch.zeros(experts.chosen, *x.shape, device=x.device, dtype=_wide(x))
    for number in sorted(set(chosen.flatten().tolist())):
        rows, ranks = (chosen == number).nonzero(as_tuple=True)
        up, down = experts.up[number], experts.down[number]
        mlp = DenseMLP(up, down, experts.activation, experts.gated)
        parts[ranks, rows] = _through(mlp, x[rows], kernels).to(parts.dtype)
    total = torch.zeros_like(parts[0])
    for rank, part in enumerate(parts):
        total += part * weights[:, rank, None]
    if experts.shared is not None:
        shared = _through(experts.shared, x, kernels).to(total.dtype)
        if experts.shared_gate:
            shared = shared * logits[:, -1:].sigmoid()
        total += shared
    return total.to(x.dtype)


def route(logits: Tensor, chosen: int, renormalise: bool) -> tuple[Tensor, Tensor]:
    """logits [T, E] -> experts [T, chosen], likeliest first, and the weight of each."""
    ordered, experts = logits.sort(dim=1, descending=True, stable=True)
    weights = ordered.softmax(dim=1)[:, :chosen]
    if renormalise:
        weights = ordered[:, :chosen].softmax(dim=1)
    return experts[:, :chosen], weights


def _through(mlp: DenseMLP, x: Tensor, kernels: Kernels) -> Tensor:
    return mlp.down(kernels.activate(mlp.up(x), mlp.activation, mlp.gated))


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
