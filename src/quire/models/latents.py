"""Attention over latents, out of a checkpoint."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.kernels.ops import AttentionSpec, IndexSpec, Norm
from quire.models.blueprint import LatentPlan
from quire.models.latent_attention import Indexer, LatentAttention
from quire.models.linear import Joined, Linear, LinearReader
from quire.models.weights import Weights

_EPS = 1e-6  # of the norms inside, whatever the others have


def read_latents(
    plan: LatentPlan,
    hidden: int,
    spec: AttentionSpec,
    weights: Weights,
    linears: LinearReader,
    prefix: str,
    rope: int | None,
    index: int,
) -> LatentAttention:
    """The attention of the layer ``prefix``, number ``index``, of the rank's query heads.

    rope: see there.
    """
    shape, shard = plan.shape, linears.shard
    inputs, queries = _read_inputs(plan, hidden, linears, prefix)
    up = f"{prefix}.{plan.up}"
    if linears.has(f"{up}.keys.0.weight"):
        weights.leave((f"{up}.",))  # of all ranks
        keys, values = _read_each(plan, linears, up)
    else:
        keys, values = _read_heads(plan, linears, up)
    output = linears.linear(
        f"{prefix}.{plan.output}",
        plan.num_heads * shape.value,
        hidden,
        plan.biased,
        shard.columns(plan.num_heads, shape.value),
    )

    def norm(name: str, width: int) -> Norm:
        return Norm(width, weights.take(f"{prefix}.{name}.weight", width), _EPS)

    of_queries = shape.query_rank and norm(plan.query_norm, shape.query_rank)
    latent_norm = norm(plan.norm, shape.kv_rank)
    return LatentAttention(
        inputs,
        of_queries or None,
        queries,
        latent_norm,
        keys,
        values,
        output,
        spec,
        rope,
        _read_index(plan, hidden, weights, linears, prefix, index),
        follows=plan.index is not None and not plan.index.shape.layers[index],
    )


def _read_index(
    plan: LatentPlan,
    hidden: int,
    weights: Weights,
    linears: LinearReader,
    prefix: str,
    index: int,
) -> Indexer | None:
    """A layer's own index, which all ranks have whole; None: it has none."""
    own, rank = plan.index, plan.shape.query_rank
    if own is None or rank is None or not own.shape.layers[index]:
        return None
    shape, turned = own.shape, plan.shape.rope
    rows = torch.arange(shape.heads * shape.width).view(shape.heads, shape.width)
    if own.interleaved:
        first = rows[:, :turned]
        rows = torch.cat((first[:, ::2], first[:, 1::2], rows[:, turned:]), 1)

    def product(name: str, inputs: int, order: Tensor) -> Linear:
        sizes, held = {"all": order.numel()}, {"all": order.flatten()}
        return linears.joined([f"{prefix}.{name}"], inputs, sizes, False, held).product

    order = rows[0]
    weight, bias = (
        weights.take(f"{prefix}.{own.norm}.{part}", shape.width)[order].contiguous()
        for part in ("weight", "bias")
    )
    return Indexer(
        queries=product(own.query, rank, rows),
        keys=product(own.key, hidden, order),
        weights=linears.exact({f"{prefix}.{own.weights}": shape.heads}, hidden),
        spec=IndexSpec(
            shape.heads, shape.most, Norm(shape.width, weight, _EPS, bias, centred=True)
        ),
    )


def _read_inputs(
    plan: LatentPlan, hidden: int, linears: LinearReader, prefix: str
) -> tuple[Joined, Linear | None]:
    """What is made of the hidden state, and of that queries, if they are not in it."""
    shape = plan.shape
    rank, width = shape.query_rank, shape.nope + shape.rope
    held = linears.shard.run(plan.num_heads)
    rows = torch.arange(plan.num_heads * width).view(plan.num_heads, width)
    in_order = torch.cat((_turned(plan, rows[:, shape.nope :]), rows[:, : shape.nope]), 1)
    of_queries = in_order[held.start : held.stop].flatten()
    first = plan.num_heads * width if rank is None else rank
    of_keys = first + torch.arange(shape.width)
    of_keys = torch.cat((_turned(plan, of_keys[shape.kv_rank :]), of_keys[: shape.kv_rank]))
    own = plan.query if rank is None else plan.query_down
    inputs = linears.joined(
        [f"{prefix}.{own}", f"{prefix}.{plan.down}"],
        hidden,
        {"q": first, "kv": shape.width},
        plan.biased,
        {"q": of_queries if rank is None else torch.arange(rank), "kv": of_keys},
    )
    if rank is None:
        return inputs, None
    name = f"{prefix}.{plan.query_up}"
    up = linears.joined([name], rank, {"q": rows.numel()}, False, {"q": of_queries})
    return inputs, up.product


def _turned(plan: LatentPlan, rows: Tensor) -> Tensor:
    """Rows [..., R] of what is turned, in the order of rotations."""
    return torch.cat((rows[..., ::2], rows[..., 1::2]), -1) if plan.interleaved else rows


def _read_each(
    plan: LatentPlan, linears: LinearReader, up: str
) -> tuple[tuple[Linear, ...], tuple[Linear, ...]]:
    """The weights of ``_read_heads`` from a GGUF file, which has them apart; rounded ones stay."""
    held, shape = linears.shard.run(plan.num_heads), plan.shape
    return (
        tuple(linears.as_stored(f"{up}.keys.{head}", shape.nope, shape.kv_rank) for head in held),
        tuple(
            linears.as_stored(f"{up}.values.{head}", shape.kv_rank, shape.value) for head in held
        ),
    )


def _read_heads(
    plan: LatentPlan, linears: LinearReader, up: str
) -> tuple[tuple[Linear, ...], tuple[Linear, ...]]:
    """By head, what takes queries to latents and what takes latents to values.

    The first is stored the other way round, as what makes keys of latents: so neither is rounded
    further, and what is stored rounded becomes floats.
    """
    shape = plan.shape
    each = shape.nope + shape.value
    held = linears.shard.run(plan.num_heads)
    rows = slice(held.start * each, held.stop * each)
    sizes = shape.kv_rank, plan.num_heads * each
    weight = linears.floats(up, *sizes, rows).view(-1, each, shape.kv_rank)
    keys = tuple(linears.kept(head[: shape.nope].T.contiguous()) for head in weight)
    values = tuple(linears.kept(head[shape.nope :]) for head in weight)
    return keys, values
