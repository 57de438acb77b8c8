"""Layers of an architecture in ``transformers``, each in one call of our kernels.

A layer of which attention, MLP and norms are ours may be no more than these, one after the other.
It is, where one call gives the same bits; then it takes the layer's place, but for steps in which
adapters have a part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from quire.kernels.layer_memory import LayerKV
from quire.kernels.mlps import DenseMLP
from quire.kernels.ops import AttentionSpec, DecoderLayer, DecoderStack, Norm, Norms, SelfAttention
from quire.models.transformers_attention import FusedAttention, PagedStep
from quire.models.transformers_parts import FusedMLP, Normed


class FusedLayer(nn.Module):
    """Replaces a layer: x + attention(norm(x)), and x + mlp(norm(x)) of that."""

    attention: FusedAttention
    mlp: FusedMLP

    def __init__(
        self, layer: nn.Module, attention: FusedAttention, mlp: FusedMLP, norms: tuple[Norm, Norm]
    ) -> None:
        """norms: before attention, and before the MLP."""
        super().__init__()
        self.layer, self.norms = layer, norms
        self.__dict__.update(attention=attention, mlp=mlp)  # the layer's own
        self._made: tuple[LayerKV, list[LayerKV], DecoderStack] | None = None

    def forward(self, hidden_states: Tensor, *others: Any, **keywords: Any) -> Any:
        """hidden_states [1, T, d] -> [1, T, d]."""
        step: PagedStep = keywords["quire_step"]
        kv, spec = step.kv[step.layer], step.specs[step.layer]
        if self._made is None or self._made[0] is not kv:
            self._made = kv, [kv], self._stack(kv, spec, hidden_states.dtype)
        _, memory, stack = self._made
        fused = None
        if self.attention.divided is self.mlp.divided:  # else not all is to be added up
            fused = step.kernels.fuse(stack, memory)
        if fused is None or self.mlp.running.adapted:
            return self.layer(hidden_states, *others, **keywords)
        step.layer += 1
        rotations = []
        if self.attention.rotated:
            rotations = [step.rotation(*keywords["position_embeddings"])]
        return fused(hidden_states[0].clone(), step.plan, rotations, None)[None]

    def _stack(self, kv: LayerKV, spec: AttentionSpec, dtype: torch.dtype) -> DecoderStack:
        attention, mlp = self.attention, self.mlp
        heads, (key_dim, value_dim) = kv.keys.shape[1], kv.dims
        queries = sum(attention.qkv.sizes) - heads * (key_dim + value_dim)
        together: tuple[Norm | None, Norm | None] = attention.norms or (None, None)
        if together[0] is not None and together[0].width == key_dim:
            spec = replace(spec, query_norm=together[0], key_norm=together[1])
            together = None, None
        mixer = SelfAttention(
            qkv=attention.qkv.product,
            output=attention.output.product,
            num_heads=queries // key_dim,
            spec=spec,
            rotation=0 if attention.rotated else None,
            query_norm=together[0],
            key_norm=together[1],
        )
        dense = DenseMLP(mlp.up.product, mlp.down.product, mlp.activation)
        before, between = (Norms(before=norm) for norm in self.norms)
        ranks = mlp.running.ranks if mlp.divided else None
        layer = DecoderLayer(mixer, before, dense, between, False)
        return DecoderStack((layer,), None, dtype, ranks)


def fused_layers(module: nn.Module) -> Iterator[FusedLayer]:
    """What a module may be, if it is a layer."""
    parts = [part for part in module.children() if not isinstance(part, nn.Dropout)]
    attention = [part for part in parts if isinstance(part, FusedAttention)]
    mlps = [part for part in parts if isinstance(part, FusedMLP)]
    norms = [part.norm for part in parts if isinstance(part, Normed)]
    if (len(attention), len(mlps), len(norms), len(parts)) == (1, 1, 2, 4):
        for both in ((norms[0], norms[1]), (norms[1], norms[0])):
            yield FusedLayer(module, attention[0], mlps[0], both)
