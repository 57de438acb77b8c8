"""The experts of an architecture in ``transformers``, each of them packed.

Its own code chooses them. What it calls with the choice is a module that holds the weights of all,
and says in which order: so it is known what they are, and checked on random numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from quire.kernels.heap import give_memory_back
from quire.kernels.mlps import Activation, DenseMLP
from quire.kernels.ops import Kernels
from quire.models.linear import Given, Linear, LinearReader
from quire.models.shard import Shard
from quire.models.transformers_parts import activation_of, random_rows, same
from quire.models.transformers_products import Running

_LOG = logging.getLogger(__name__)

_CHOSEN = 2  # experts of a row, in the check
_ROUNDED = 0.4  # error of rounded weights, at most; of others' products it is near 1


class ChosenExperts(nn.Module):
    """Replaces experts: what the chosen of each row give, by weights, added up in order."""

    def __init__(self, experts: Sequence[DenseMLP], running: Running) -> None:
        super().__init__()
        self.experts, self.num_experts, self.running = experts, len(experts), running
        self.divided = False  # whether ranks have parts

    @property
    def nbytes(self) -> int:
        """Bytes of weights."""
        return sum(cast(Linear, one).nbytes for mlp in self.experts for one in (mlp.up, mlp.down))

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """x [T, d], chosen and weights [T, K] -> [T, d]."""
        rows, each = chosen.shape
        numbers, order = chosen.flatten().sort(stable=True)
        gathered = x[order // each]
        parts, first = torch.empty(rows * each, x.shape[1]), 0
        for number, count in zip(
            *torch.unique_consecutive(numbers, return_counts=True), strict=True
        ):
            last = first + int(count)
            parts[order[first:last]] = self._through(int(number), gathered[first:last]).float()
            first = last
        by_rank = parts.view(rows, each, -1) * weights.float()[..., None]
        total = by_rank[:, 0]
        for rank in range(1, each):
            total = total + by_rank[:, rank]
        total = total.to(x.dtype)
        if self.divided and self.running.ranks is not None:
            self.running.ranks.add_up(total)
        return total

    def _through(self, number: int, x: Tensor) -> Tensor:
        mlp = self.experts[number]
        inner = self.running.kernels.activate(mlp.up(x), mlp.activation)
        return mlp.down(inner)


def put_experts(
    causal_lm: Any, linears: LinearReader, running: Running, exact: Kernels, shard: Shard
) -> int:
    """Put packed experts in the place of those of which ``transformers`` keeps one tensor; their
    bytes.

    ConfigError: ranks do not divide them.
    """
    nbytes = 0
    for name, parent in list(causal_lm.named_modules()):
        for attribute, module in list(parent.named_children()):
            if getattr(module, "has_gate", None) is None or not hasattr(module, "down_proj"):
                continue
            own = _packed(f"{name}.{attribute}", module, linears, running, exact, shard)
            if own is None:
                _LOG.info("experts stay transformers' own: %s.%s", name, attribute)
                continue
            setattr(parent, attribute, own)
            nbytes += own.nbytes
            del module
            give_memory_back()
    return nbytes


def _packed(
    name: str,
    module: Any,
    linears: LinearReader,
    running: Running,
    exact: Kernels,
    shard: Shard,
) -> ChosenExperts | None:
    """The same experts, or the rank's part of each; None: they are something else."""
    activation = activation_of(getattr(module, "act_fn", None), exact)
    joined = module.is_concatenated or not module.has_gate
    if activation is None or module.has_post_expert_norm or not joined:
        return None
    first = "gate_up_proj" if module.has_gate else "up_proj"

    def one(number: int, tensor: str) -> Given:
        weight = getattr(module, tensor).data[number]
        bias = getattr(module, f"{tensor}_bias").data[number] if module.has_bias else None
        return Given(weight.T.contiguous() if module.is_transposed else weight, bias)

    def packed(part: Callable[[Given, bool], Given]) -> ChosenExperts:
        experts = []
        for number in range(module.num_experts):
            up, down = (
                linears.given({f"{name}.{number}.{tensor}": part(one(number, tensor), is_up)})
                for tensor, is_up in ((first, True), ("down_proj", False))
            )
            experts.append(DenseMLP(up, down, Activation(activation, module.has_gate)))
        return ChosenExperts(experts, running)

    own = packed(lambda given, _: given)
    x = random_rows(
        module.down_proj.shape[2 if module.is_transposed else 1], module.down_proj.dtype
    )
    chosen = torch.arange(len(x) * _CHOSEN).view(-1, _CHOSEN) % module.num_experts
    weights = torch.rand(chosen.shape, generator=torch.Generator().manual_seed(0)).to(x.dtype)
    tolerance = _ROUNDED if linears.rounds else None
    if not same(module, own, x, chosen, weights, tolerance=tolerance):
        return None
    if shard.is_whole:
        return own
    own = packed(partial(_held, shard, name, module.has_gate))
    own.divided = True
    return own


def _held(shard: Shard, name: str, gated: bool, given: Given, is_up: bool) -> Given:
    """The rank's part of an expert's projection."""
    weight, bias = given
    if is_up:
        rows = torch.arange(len(weight)).view(1 + gated, -1)
        shard.check(rows.shape[1], "numbers inside of experts", name)
        run = shard.run(rows.shape[1])
        own = rows[:, run.start : run.stop].flatten()
        return Given(weight[own], None if bias is None else bias[own])
    columns = shard.columns(weight.shape[1])
    return Given(weight[:, columns].contiguous(), bias if shard.rank == 0 else None)
