"""The experts of a layer, out of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quire.kernels.heap import give_memory_back
from quire.kernels.mlps import Activation, DenseMLP, Experts
from quire.models.blueprint import Blueprint, Mixture
from quire.models.dividing import rows_of_parts
from quire.models.linear import Linear, LinearReader, PlainLinear, Stack
from quire.models.parts import ALL


def read_experts(plan: Blueprint, mixture: Mixture, linears: LinearReader, prefix: str) -> Experts:
    """The experts of the layer ``prefix``. Where weights are packed, only one expert at a time is
    held twice.
    """
    shape, names, hidden = mixture.shape, mixture.names, plan.hidden_size
    routers = [f"{prefix}.{name}" for name in names.routers]
    router = {next((r for r in routers if linears.has(f"{r}.weight")), routers[0]): shape.count}
    gated = shape.shared_inner > 0 and names.shared_gate is not None
    if gated:
        router[f"{prefix}.{names.shared_gate}"] = 1
    pairs = [_read_expert(plan, mixture, linears.experts, prefix, n) for n in range(shape.count)]
    give_memory_back()  # what stays of each lies in what others took: nobody takes that again
    return Experts(
        router=linears.exact(router, hidden, names.biased),
        up=_in_one_tensor(linears, [up for up, _ in pairs]),
        down=_in_one_tensor(linears, [down for _, down in pairs]),
        activation=Activation(plan.activation, plan.gated),
        routing=mixture.routing._replace(
            bias=_by_expert(mixture, names.choice_biases, linears, prefix),
            factors=_by_expert(mixture, names.factors, linears, prefix),
        ),
        shared=_read_shared(plan, mixture, linears, prefix),
        shared_gate=gated,
    )


def _by_expert(
    mixture: Mixture, names: Sequence[str], linears: LinearReader, prefix: str
) -> Tensor | None:
    """A number of each expert."""
    own = [f"{prefix}.{name}" for name in names]
    return linears.numbers(own, mixture.shape.count) if own else None


def _read_expert(
    plan: Blueprint, mixture: Mixture, linears: LinearReader, prefix: str, number: int
) -> tuple[Linear, Linear]:
    """The projection for gate and up, and the one for their product."""
    shape, names, hidden = mixture.shape, mixture.names, plan.hidden_size
    parts = _parts(plan, shape.inner)
    rows, columns = rows_of_parts(linears.shard, parts), linears.shard.columns(shape.inner)
    for stacks in names.stacks:
        up, down = (f"{prefix}.{name}" for name in stacks)
        if linears.has_stack(up) or (stacks == names.stacks[-1] and not names.up):
            stack = Stack(
                up, (shape.count, sum(parts.values()), hidden), names.turned, names.biased
            )
            if linears.has_turned(stack):  # as some savers of Qwen3-VL have them
                stack = stack._replace(turned=True)
            held = ALL if rows is None else torch.cat(list(rows.values()))
            if names.paired:
                stored = torch.arange(2 * shape.inner).view(-1, 2).T.flatten()
                held = stored[held]
            return (
                linears.one_of(stack, number, held),
                linears.one_of(
                    stack._replace(name=down, shape=(shape.count, hidden, shape.inner)),
                    number,
                    ALL,
                    columns,
                ),
            )
    each = [f"{prefix}.{name.format(number)}" for name in names.up]
    down = f"{prefix}.{names.down.format(number)}"
    return (
        linears.joined(each, hidden, parts, names.biased, rows).product,
        linears.linear(down, shape.inner, hidden, names.biased, columns),
    )


def _in_one_tensor(linears: LinearReader, alike: Sequence[Linear]) -> tuple[Linear, ...]:
    """The same projections: as PyTorch has them they lie one after another, so that one launch
    multiplies by any of them. Meanwhile all are held twice.
    """
    plain = [one for one in alike if isinstance(one, PlainLinear)]
    if len(plain) < len(alike):
        return tuple(alike)
    weights = torch.stack([one.weight for one in plain])
    found = tuple(map(PlainLinear, weights, (one.bias for one in plain)))
    named = linears.named
    for one, other in zip(plain, found, strict=True):
        if id(one) in named:
            named[id(other)] = named.pop(id(one))
    return found


def _read_shared(
    plan: Blueprint, mixture: Mixture, linears: LinearReader, prefix: str
) -> DenseMLP | None:
    inner, names = mixture.shape.shared_inner, mixture.names
    if not inner or not names.shared_up:
        return None
    up = [f"{prefix}.{name}" for name in names.shared_up]
    parts, down = _parts(plan, inner), f"{prefix}.{names.shared_down}"
    rows, columns = rows_of_parts(linears.shard, parts), linears.shard.columns(inner)
    return DenseMLP(
        up=linears.joined(up, plan.hidden_size, parts, False, rows).product,
        down=linears.linear(down, inner, plan.hidden_size, False, columns),
        activation=Activation(plan.activation, plan.gated),
    )


def _parts(plan: Blueprint, inner: int) -> dict[str, int]:
    return {"gate": inner, "up": inner} if plan.gated else {"up": inner}
