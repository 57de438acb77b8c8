"""A decoder as data, and the forward pass over it: what families of models are built into.

Shapes use T, the new tokens of a step over all its sequences, and d, the width of the layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from quire.kernels.adapters import AdaptedRows, Site
from quire.kernels.ops import (
    AttentionBatch,
    AttentionSpec,
    DecoderLayer,
    DecoderStack,
    DenseMLP,
    Experts,
    Kernels,
    KVShape,
    LayerKV,
    Norm,
    Norms,
    Rotation,
    SelfAttention,
)
from quire.model.base import ExpertFacts
from quire.model.linear import Joined, Linear, NamedParts
from quire.model.rope import Rope


@dataclass(frozen=True)
class Attention:
    """Over all that a sequence has kept, with the projections around it."""

    qkv: Joined
    output: Linear
    kv: KVShape
    spec: AttentionSpec
    rope: int | None = None  # which of the decoder's; None: it knows no positions
    query_norm: Norm | None = None  # of all heads together; of each alone as ``spec`` says
    key_norm: Norm | None = None

    @property
    def num_heads(self) -> int:
        """Of queries."""
        return self.qkv.parts["q"] // self.kv.key_dim

    def fusable(self) -> SelfAttention:
        """The same for kernels that run layers whole."""
        return SelfAttention(
            qkv=self.qkv.product,
            output=self.output,
            num_heads=self.num_heads,
            spec=self.spec,
            rotation=self.rope,
            query_norm=self.query_norm,
            key_norm=self.key_norm,
        )


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

    def fusable(self) -> DenseMLP:
        """See ``Attention.fusable``."""
        return DenseMLP(self.up.product, self.down, self.activation, self.gated)


@dataclass(frozen=True)
class Layer:
    """Attention, then an MLP; see ``DecoderLayer``."""

    attention: Attention
    attention_norms: Norms
    mlp: MLP | Experts
    mlp_norms: Norms
    residual_scale: float = 1.0
    parallel: bool = False

    def fusable(self) -> DecoderLayer:
        """See ``Attention.fusable``."""
        return DecoderLayer(
            attention=self.attention.fusable(),
            attention_norms=self.attention_norms,
            mlp=self.mlp if isinstance(self.mlp, Experts) else self.mlp.fusable(),
            mlp_norms=self.mlp_norms,
            residual_scale=self.residual_scale,
            parallel=self.parallel,
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
    ropes: tuple[Rope, ...] = ()
    positions: LearnedPositions | None = None
    embedding_scale: float = 1.0
    logits_scale: float = 1.0
    logits_softcap: float | None = None  # logits become softcap * tanh(logits / softcap)
    project_in: Linear | None = None  # where the embedding is not as wide as the layers
    project_out: Linear | None = None

    def fusable(self) -> DecoderStack:
        """The layers for kernels that run them whole."""
        layers = tuple(layer.fusable() for layer in self.layers)
        return DecoderStack(layers, self.final_norm, self.dtype)


class DecoderModel:
    """A ``Model`` that is a ``Decoder``."""

    def __init__(
        self,
        decoder: Decoder,
        max_positions: int,
        eos_token_ids: tuple[int, ...],
        weight_bytes: int,
        named: Mapping[int, NamedParts] | None = None,
        *,
        has_head: bool = True,
    ) -> None:
        """named: what products are made of, by their ids, for adapters to find them."""
        self.has_head = has_head
        self.decoder = decoder
        self.named = named or {}
        self.vocab_size = decoder.vocab_size
        self.dtype = decoder.dtype
        self.kv_shapes = tuple(layer.attention.kv for layer in decoder.layers)
        self.windows = tuple(layer.attention.spec.window for layer in decoder.layers)
        self.max_positions = max_positions
        self.eos_token_ids = eos_token_ids
        self.weight_bytes = weight_bytes
        self.experts = _expert_facts(decoder.layers)
        # Which experts rows go to is asked of the device, by kernels without a grouped product.
        self.replayable = self.experts is None
        stable = [rope.stable_length for rope in decoder.ropes if rope.stable_length is not None]
        self.kv_depends_on_prompt_length = max_positions > min(stable, default=max_positions)
        self._stack = decoder.fusable()

    def forward(
        self,
        token_ids: Tensor,
        batch: AttentionBatch,
        kv: Sequence[LayerKV],
        kernels: Kernels,
    ) -> Tensor:
        """See ``Model.forward``."""
        decoder = self.decoder
        rotations = [rope.rotation(batch) for rope in decoder.ropes]
        x = decoder.embed.rows(token_ids, self.dtype)
        if decoder.embedding_scale != 1.0:
            x = x * decoder.embedding_scale
        if decoder.project_in is not None:
            x = decoder.project_in(x)
        if decoder.positions is not None:
            table, offset = decoder.positions
            x = x + torch.embedding(table, batch.positions + offset)
        plan = kernels.plan(batch)
        fused = kernels.fuse(self._stack, kv)
        if fused is not None:
            x = fused(x, plan, rotations)
        else:
            x = run_layers(
                decoder.layers, decoder.final_norm, x, kv, kernels, plan, rotations, batch.adapted
            )
        return x if decoder.project_out is None else decoder.project_out(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """See ``Model.logits``."""
        logits, scale = self.decoder.head.floats(hidden), self.decoder.logits_scale
        if scale != 1.0:
            logits.mul_(scale)
        cap = self.decoder.logits_softcap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)


def _expert_facts(layers: Sequence[Layer]) -> ExpertFacts | None:
    mixtures = [layer.mlp for layer in layers if isinstance(layer.mlp, Experts)]
    if not mixtures:
        return None
    weights = [cast(Linear, weight) for one in mixtures for weight in (*one.up, *one.down)]
    weight_bytes = sum(weight.nbytes for weight in weights)
    return ExpertFacts(len(mixtures[0].up), mixtures[0].chosen, weight_bytes)


class Adapting(NamedTuple):
    """Products of one layer, with what the adapters of a step's rows add to them."""

    kernels: Kernels
    adapted: Sequence[AdaptedRows]
    layer: int

    def product(self, site: Site, projection: Linear, x: Tensor) -> Tensor:
        """x [T, in] -> [T, out]."""
        out = projection(x)
        if self.adapted:
            self.kernels.adapt(self.adapted, self.layer, site, x, out)
        return out


def run_layers(
    layers: Sequence[Layer],
    final_norm: Norm | None,
    x: Tensor,
    kv: Sequence[LayerKV],
    kernels: Kernels,
    plan: Any,
    rotations: Sequence[Rotation],
    adapted: Sequence[AdaptedRows] = (),
) -> Tensor:
    """x [T, d], which is used up -> [T, d], operation by operation."""
    h = _given(x, layers[0].attention_norms.before, kernels)
    next_norms = [*(layer.attention_norms.before for layer in layers[1:]), final_norm]
    for number, (layer, layer_kv, next_norm) in enumerate(zip(layers, kv, next_norms, strict=True)):
        adapting = Adapting(kernels, adapted, number)
        around, scale, before = layer.mlp_norms, layer.residual_scale, layer.mlp_norms.before
        delta = _attend(layer.attention, h, layer_kv, kernels, plan, rotations, adapting)
        if layer.parallel:
            h = h if before is None else kernels.norm(x, before)  # x as the attention had it
            x, _ = _add(x, delta, scale, layer.attention_norms, None, kernels)
        else:
            x, h = _add(x, delta, scale, layer.attention_norms, before, kernels)
        delta = _go_through(layer.mlp, h, kernels, adapting)
        x, h = _add(x, delta, scale, around, next_norm, kernels)
    return h


def _given(x: Tensor, before: Norm | None, kernels: Kernels) -> Tensor:
    return x if before is None else kernels.norm(x, before)


def _add(
    x: Tensor, delta: Tensor, scale: float, norms: Norms, before: Norm | None, kernels: Kernels
) -> tuple[Tensor, Tensor]:
    """What x [T, d], which is used up, goes on as, and what the next part is given of it."""
    if norms.output is not None:
        delta = kernels.norm(delta, norms.output)
    if scale != 1.0:
        delta = delta * scale
    if norms.after is not None:
        x = kernels.add_norm(x, delta, norms.after)
        return x, _given(x, before, kernels)
    if before is not None:
        return x, kernels.add_norm(x, delta, before)
    x = x.add_(delta)
    return x, x


def _go_through(mlp: MLP | Experts, h: Tensor, kernels: Kernels, adapting: Adapting) -> Tensor:
    """h [T, d] -> [T, d]."""
    if isinstance(mlp, Experts):
        return kernels.mix(h, mlp)
    up = adapting.product(Site.up, mlp.up.product, h)
    return adapting.product(Site.down, mlp.down, kernels.activate(up, mlp.activation, mlp.gated))


def _attend(
    attention: Attention,
    h: Tensor,
    kv: LayerKV,
    kernels: Kernels,
    plan: Any,
    rotations: Sequence[Rotation],
    adapting: Adapting,
) -> Tensor:
    """h [T, d] -> [T, d]."""
    query, key, value = attention.qkv.split(adapting.product(Site.qkv, attention.qkv.product, h))
    query, key = (
        _given(x, norm, kernels)
        for x, norm in ((query, attention.query_norm), (key, attention.key_norm))
    )
    rows, (kv_heads, key_dim, value_dim) = len(h), attention.kv
    attended = kernels.attend(
        query.view(rows, attention.num_heads, key_dim),
        key.view(rows, kv_heads, key_dim),
        value.view(rows, kv_heads, value_dim),
        kv,
        attention.spec,
        plan,
        None if attention.rope is None else rotations[attention.rope],
    )
    return adapting.product(Site.output, attention.output, attended.flatten(1))
