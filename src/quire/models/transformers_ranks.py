"""An architecture in ``transformers``, divided among ranks.

Its modules that are ours say what is divided: attention by heads, MLPs by what is inside. Each
rank has found them in the whole model; then it reads the weights of its part once more and lets go
of the others. What is transformers' own, embeddings and heads are whole on every rank.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quire.core.errors import ConfigError
from quire.kernels.layer_memory import KVShape
from quire.kernels.ops import AttentionSpec
from quire.models.linear import Given, LinearReader
from quire.models.parts import ALL, Rows, as_rows
from quire.models.shard import Shard
from quire.models.transformers_attention import FusedAttention
from quire.models.transformers_experts import ChosenExperts
from quire.models.transformers_parts import FusedMLP
from quire.models.transformers_products import JoinedProduct


class HeldLayers(NamedTuple):
    """What layers keep of a token on a rank, and how they attend to it."""

    shapes: tuple[KVShape, ...]
    specs: tuple[AttentionSpec, ...]


class RankDivision(NamedTuple):
    """How a model is divided among ranks, as one of them sees it."""

    shard: Shard
    linears: LinearReader  # packs the rank's parts
    name: str  # of the architecture

    def divide(self, decoder: Any, kept: HeldLayers) -> HeldLayers:
        """Leave of a decoder's modules the rank's part, and of what its layers keep.

        ConfigError: this number of ranks does not divide it, or nothing in it.
        """
        shapes, specs = list(kept.shapes), list(kept.specs)
        found = [*decoder.modules()]
        if not any(isinstance(one, FusedAttention | FusedMLP | ChosenExperts) for one in found):
            raise ConfigError(
                f"tensor_parallel_size is {self.shard.size}, but of {self.name} all is "
                "transformers' own; allowed: 1"
            )
        for module in found:
            if isinstance(module, FusedMLP):
                _divide_mlp(module, self)
            elif isinstance(module, FusedAttention) and _by_heads(module, shapes[module.layer]):
                shape, spec = shapes[module.layer], specs[module.layer]
                heads = _divide_attention(module, shape, self)
                own = len(self.shard.kv_heads(shape.num_kv_heads))
                shapes[module.layer] = shape._replace(num_kv_heads=own)
                if spec.sink_logits is not None:
                    held = spec.sink_logits[heads.start : heads.stop].contiguous()
                    specs[module.layer] = replace(spec, sink_logits=held)
        return HeldLayers(tuple(shapes), tuple(specs))


def _by_heads(attention: FusedAttention, shape: KVShape) -> bool:
    """Whether no norm is of all heads together; such attention stays whole."""
    norms = attention.norms or ()
    return all(norm.width == shape.key_dim for norm in norms)


def _divide_attention(attention: FusedAttention, shape: KVShape, division: RankDivision) -> range:
    """The rank's query heads."""
    shard, linears, name = division
    kv_heads, key_dim, value_dim, *_ = shape
    queries = sum(attention.qkv.sizes) - kv_heads * (key_dim + value_dim)
    heads = queries // key_dim
    shard.check(heads, "heads", name)
    if kv_heads % shard.size and shard.size % kv_heads:
        shard.check(kv_heads, "heads of keys and values", name)
    held, held_kv = shard.run(heads), shard.kv_heads(kv_heads)
    keys = queries + kv_heads * key_dim
    rows = [
        torch.arange(first + run.start * width, first + run.stop * width)
        for first, run, width in (
            (0, held, key_dim),
            (queries, held_kv, key_dim),
            (keys, held_kv, value_dim),
        )
    ]
    _hold_rows(attention.qkv, torch.cat(rows), linears)
    _hold_columns(attention.output, shard.columns(heads, value_dim), shard, linears)
    attention.divided = True
    return held


def _divide_mlp(mlp: FusedMLP, division: RankDivision) -> None:
    shard, linears, name = division
    inner = mlp.down.inputs
    shard.check(inner, "numbers inside of MLPs", name)
    run, rows = shard.run(inner), torch.arange(sum(mlp.up.sizes)).view(-1, inner)
    _hold_rows(mlp.up, rows[:, run.start : run.stop].flatten(), linears)
    _hold_columns(mlp.down, shard.columns(inner), shard, linears)
    mlp.divided = True


def _hold_rows(joined: JoinedProduct, rows: Tensor, linears: LinearReader) -> None:
    """Keep these rows of all outputs, side by side."""
    parts, held, first = {}, list[Rows](), 0
    for name, given in joined.source().items():
        count = len(given.weight)
        own = rows[(rows >= first) & (rows < first + count)] - first
        held.append(as_rows(own) if len(own) else slice(0, 0))
        bias = None if given.bias is None else given.bias[own]
        parts[name] = Given(given.weight[own], bias)
        first += count
    joined.hold(linears.given(parts), held, ALL)


def _hold_columns(
    joined: JoinedProduct, columns: slice, shard: Shard, linears: LinearReader
) -> None:
    """Keep these inputs; ranks' results are added up, so only the first has the bias."""
    parts = {
        name: Given(given.weight[:, columns].contiguous(), given.bias if shard.rank == 0 else None)
        for name, given in joined.source().items()
    }
    joined.hold(linears.given(parts), [ALL] * len(parts), columns)
