"""A decoder as data, and the forward pass over it: what families of models are built into.

Shapes use T, the new tokens of a step over all its sequences, and d, the width of the layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quire.kernels.ops import (
    AttentionBatch,
    AttentionSpec,
    Kernels,
    KVShape,
    LayerKV,
    Norm,
    PreNormDecoder,
    PreNormLayer,
    Rotation,
)
from quire.model.linear import Joined, Linear
from quire.model.rope import Rope


@dataclass(frozen=True)
class Attention:
    """Over all that a sequence has kept, with the projections around it."""

    qkv: Joined
    output: Linear
    kv: KVShape
    spec: AttentionSpec

    @property
    def num_heads(self) -> int:
        """Of queries."""
        return self.qkv.parts["q"] // self.kv.key_dim


@dataclass(frozen=True)
class MLP:
    """down(activation(up(x))); with a gate, down(activation(gate(x)) * up(x))."""

    up: Joined  # the gate, if there is one, and what it multiplies
    down: Linear
    activation: str

    @property
    def gated(self) -> bool:
        """Whether there is a gate."""
        return "gate" in self.up.parts


class Norms(NamedTuple):
    """Around a part of a layer: x becomes after(x + part(before(x)))."""

    before: Norm | None = None
    after: Norm | None = None


@dataclass(frozen=True)
class Layer:
    """Attention, then an MLP."""

    attention: Attention
    attention_norms: Norms
    mlp: MLP
    mlp_norms: Norms

    def pre_norm(self) -> PreNormLayer | None:
        """The same for kernels that run it whole; None where it normalises otherwise."""
        (first, first_after), (second, second_after) = self.attention_norms, self.mlp_norms
        if first is None or second is None or first_after or second_after:
            return None
        attention, mlp = self.attention, self.mlp
        return PreNormLayer(
            attention_norm=first,
            qkv=attention.qkv.product,
            num_heads=attention.num_heads,
            spec=attention.spec,
            output=attention.output,
            mlp_norm=second,
            up=mlp.up.product,
            down=mlp.down,
            activation=mlp.activation,
            gated=mlp.gated,
        )


class LearnedPositions(NamedTuple):
    """Vectors that are added to those of the tokens."""

    table: Tensor  # [positions + offset, d]
    offset: int  # the row of position 0


@dataclass(frozen=True, eq=False)
class Decoder:
    """All that tokens go through, from their ids to logits."""

    vocab_size: int
    dtype: torch.dtype  # of what goes from layer to layer
    embed: Linear  # whose rows are the tokens' vectors
    layers: tuple[Layer, ...]
    final_norm: Norm | None
    head: Linear
    rope: Rope | None = None
    positions: LearnedPositions | None = None
    project_in: Linear | None = None  # where the embedding is not as wide as the layers
    project_out: Linear | None = None

    def pre_norm(self) -> PreNormDecoder | None:
        """The layers for kernels that run them whole; None where one normalises otherwise."""
        layers = tuple(found for layer in self.layers if (found := layer.pre_norm()) is not None)
        if len(layers) < len(self.layers):
            return None
        return PreNormDecoder(layers, self.final_norm, self.dtype)


class DecoderModel:
    """A ``Model`` that is a ``Decoder``."""

    replayable = True

    def __init__(
        self,
        decoder: Decoder,
        max_positions: int,
        eos_token_ids: tuple[int, ...],
        weight_bytes: int,
        *,
        has_head: bool = True,
    ) -> None:
        self.has_head = has_head
        self.decoder = decoder
        self.vocab_size = decoder.vocab_size
        self.dtype = decoder.dtype
        self.kv_shapes = tuple(layer.attention.kv for layer in decoder.layers)
        self.windows = tuple(layer.attention.spec.window for layer in decoder.layers)
        self.max_positions = max_positions
        self.eos_token_ids = eos_token_ids
        self.weight_bytes = weight_bytes
        stable = None if decoder.rope is None else decoder.rope.stable_length
        self.kv_depends_on_prompt_length = stable is not None and max_positions > stable
        self._pre_norm = decoder.pre_norm()

    def forward(
        self,
        token_ids: Tensor,
        batch: AttentionBatch,
        kv: Sequence[LayerKV],
        kernels: Kernels,
    ) -> Tensor:
        """See ``Model.forward``."""
        decoder = self.decoder
        rotation = None if decoder.rope is None else decoder.rope.rotation(batch)
        x = decoder.embed.rows(token_ids, self.dtype)
        if decoder.project_in is not None:
            x = decoder.project_in(x)
        if decoder.positions is not None:
            table, offset = decoder.positions
            x = x + torch.embedding(table, batch.positions + offset)
        plan = kernels.plan(batch)
        fused = None if self._pre_norm is None else kernels.fuse(self._pre_norm, kv)
        if fused is not None:
            x = fused(x, plan, rotation)
        else:
            x = run_layers(decoder.layers, decoder.final_norm, x, kv, kernels, plan, rotation)
        return x if decoder.project_out is None else decoder.project_out(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """See ``Model.logits``."""
        return self.decoder.head.floats(hidden)


def run_layers(
    layers: Sequence[Layer],
    final_norm: Norm | None,
    x: Tensor,
    kv: Sequence[LayerKV],
    kernels: Kernels,
    plan: Any,
    rotation: Rotation | None,
) -> Tensor:
    """x [T, d], which is used up -> [T, d], operation by operation."""
    first_norm = layers[0].attention_norms.before
    h = x if first_norm is None else kernels.norm(x, first_norm)
    next_norms = [*(layer.attention_norms.before for layer in layers[1:]), final_norm]
    for layer, layer_kv, next_norm in zip(layers, kv, next_norms, strict=True):
        delta = _attend(layer.attention, h, layer_kv, kernels, plan, rotation)
        x, h = _add(x, delta, layer.attention_norms.after, layer.mlp_norms.before, kernels)
        up = layer.mlp.up.product(h)
        delta = layer.mlp.down(kernels.activate(up, layer.mlp.activation, layer.mlp.gated))
        x, h = _add(x, delta, layer.mlp_norms.after, next_norm, kernels)
    return h


def _add(
    x: Tensor, delta: Tensor, after: Norm | None, before: Norm | None, kernels: Kernels
) -> tuple[Tensor, Tensor]:
    """What x [T, d], which is used up, goes on as, and what the next part is given of it."""
    if after is not None:
        x = kernels.add_norm(x, delta, after)
        return x, x if before is None else kernels.norm(x, before)
    if before is not None:
        return x, kernels.add_norm(x, delta, before)
    x = x.add_(delta)
    return x, x


def _attend(
    attention: Attention,
    h: Tensor,
    kv: LayerKV,
    kernels: Kernels,
    plan: Any,
    rotation: Rotation | None,
) -> Tensor:
    """h [T, d] -> [T, d]."""
    query, key, value = attention.qkv.split(h)
    rows, (kv_heads, key_dim, value_dim) = len(h), attention.kv
    attended = kernels.attend(
        query.view(rows, attention.num_heads, key_dim),
        key.view(rows, kv_heads, key_dim),
        value.view(rows, kv_heads, value_dim),
        kv,
        attention.spec,
        plan,
        rotation,
    )
    return attention.output(attended.flatten(1))
