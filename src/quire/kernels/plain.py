"""Activations, mixtures of experts and masks in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.kernels.mlps import CLAMPED_SWIGLU, Activation, Alphas, DenseMLP, Experts, Routing
from quire.kernels.ops import Kernels

_gelu_tanh: Callable[[Tensor], Tensor] = partial(F.gelu, approximate="tanh")
_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "relu": torch.relu,
    "relu2": lambda x: torch.relu(x).square(),
    "silu": F.silu,
}


def activate(x: Tensor, activation: Activation) -> Tensor:
    name, gated, factor, alphas, cut = activation
    if cut is not None:
        first, *rest = x.chunk(2, dim=-1) if gated else (x,)
        x = torch.cat((_above(first, cut), *rest), -1)
    if name == CLAMPED_SWIGLU:
        gate, up = x.chunk(2, dim=-1)
        gate, up = gate.clamp(max=7), up.clamp(-7, 7)
        return gate * torch.sigmoid(1.702 * gate) * (up + 1)
    function = _ACTIVATIONS[name] if alphas is None else partial(_xielu, alphas)
    if not gated:
        return function(factor * x)
    gate, up = x.chunk(2, dim=-1)
    return function(factor * gate) * up


def allow(x: Tensor, masks: Tensor, rows: Tensor) -> Tensor:
    bits = masks[:, :, None] >> torch.arange(32, device=x.device, dtype=torch.int32) & 1
    allowed = F.pad(bits.flatten(1), (0, x.shape[1] - bits[0].numel()))  # [N, V]
    out = x.clone(memory_format=torch.contiguous_format)
    out[rows] = out[rows].masked_fill(allowed == 0, -torch.inf)
    return out


def _above(x: Tensor, deviations: float) -> Tensor:
    wide = x.to(_wide(x))
    deviation, mean = torch.std_mean(wide, dim=-1, keepdim=True, correction=0)
    return torch.relu(wide - (mean + deviation * deviations)).to(x.dtype)


def _xielu(alphas: Alphas, x: Tensor) -> Tensor:
    wide = x.to(_wide(x))
    below = (wide.clamp(max=-1e-6).expm1() - wide) * alphas.below
    return (torch.where(wide > 0, alphas.above * wide.square(), below) + 0.5 * wide).to(x.dtype)


def mixed(x: Tensor, experts: Experts, kernels: Kernels, routed: Tensor | None = None) -> Tensor:
    """See ``Kernels.mix``, by these kernels' activations.

    Waits for the device, to know which experts were chosen.
    """
    logits = experts.router.floats(x if routed is None else routed)
    chosen, weights = route(logits[:, : len(experts.up)], experts.routing)
    # By rank, and added up in that order.
    parts = torch.zeros(experts.routing.chosen, *x.shape, device=x.device, dtype=_wide(x))
    for number in sorted(set(chosen.flatten().tolist())):
        rows, ranks = (chosen == number).nonzero(as_tuple=True)
        up, down = experts.up[number], experts.down[number]
        mlp = DenseMLP(up, down, experts.activation)
        given = x[rows]
        if experts.routing.before:
            given = (given * weights[rows, ranks, None]).to(x.dtype)
        parts[ranks, rows] = _through(mlp, given, kernels).to(parts.dtype)
    total = torch.zeros_like(parts[0])
    for rank, part in enumerate(parts):
        total += part if experts.routing.before else part * weights[:, rank, None]
    if experts.shared is not None:
        shared = _through(experts.shared, x, kernels).to(total.dtype)
        if experts.shared_gate:
            shared = shared * logits[:, -1:].sigmoid()
        total += shared
    return total.to(x.dtype)


def route(logits: Tensor, routing: Routing) -> tuple[Tensor, Tensor]:
    """logits [T, E] -> experts [T, chosen], the highest scores first, and the weight of each."""
    experts, weights = _route(logits, routing)
    return experts, weights if routing.factors is None else weights * routing.factors[experts]


def _route(logits: Tensor, routing: Routing) -> tuple[Tensor, Tensor]:
    chosen = routing.chosen
    if routing.by_softmax:
        ordered, experts = logits.sort(dim=1, descending=True, stable=True)
        weights = ordered.softmax(dim=1)[:, :chosen]
        if routing.nearness:
            weights = _shares_of_near(ordered, routing)
        elif routing.renormalise:
            weights = ordered[:, :chosen].softmax(dim=1)
        return experts[:, :chosen], weights * routing.scale
    scores = logits.sigmoid() if routing.sigmoid else logits.softmax(dim=1)
    worth = scores if routing.bias is None else scores + routing.bias.to(scores.device)
    if routing.groups_chosen < routing.groups:
        worth = _in_best_groups(worth, routing)
    experts = worth.sort(dim=1, descending=True, stable=True).indices[:, :chosen]
    weights = scores.gather(1, experts)
    if routing.renormalise:
        weights = weights / (weights.sum(dim=1, keepdim=True) + 1e-20)
    return experts, weights * routing.scale


def _shares_of_near(ordered: Tensor, routing: Routing) -> Tensor:
    """Of numbers [T, E], the largest first, the share of each that is chosen."""
    shares = []
    for place in range(routing.chosen):
        left = ordered[:, place:]
        most = left[:, :1]
        far = (most - left) / torch.maximum(left.abs(), most) > 2 * routing.nearness
        shares.append(left.masked_fill(far, float("-inf")).softmax(dim=1)[:, 0])
    return torch.stack(shares, 1)


def _in_best_groups(worth: Tensor, routing: Routing) -> Tensor:
    """worth [T, E], without end below zero for experts of other groups."""
    grouped = worth.view(len(worth), routing.groups, -1)
    best = grouped.sort(dim=2, descending=True).values[..., : routing.best].sum(dim=2)
    groups = best.sort(dim=1, descending=True, stable=True).indices[:, : routing.groups_chosen]
    others = torch.ones_like(best, dtype=torch.bool).scatter(1, groups, False)
    return grouped.masked_fill(others[..., None], float("-inf")).view(worth.shape)


def _through(mlp: DenseMLP, x: Tensor, kernels: Kernels) -> Tensor:
    return mlp.down(kernels.activate(mlp.up(x), mlp.activation))


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
