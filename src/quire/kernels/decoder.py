"""A decoder carried out operation by operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from quire.kernels.ops import Decoder, DecoderLayer, Kernels, LayerKV, Rotation


class OperationWise(Kernels, Protocol):
    """``Kernels`` that have nothing better for a whole decoder than their single operations."""

    def run(
        self,
        decoder: Decoder,
        x: Tensor,
        kv: Sequence[LayerKV],
        plan: Any,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """See ``Kernels.run``."""
        layers = decoder.layers
        h = self.norm(x, layers[0].attention_norm)
        next_norms = [*(layer.attention_norm for layer in layers[1:]), decoder.final_norm]
        for layer, layer_kv, next_norm in zip(layers, kv, next_norms, strict=True):
            attended = attention(self, layer, h, layer_kv, plan, rotation)
            h = self.add_norm(x, attended, layer.mlp_norm)
            activated = self.activate(layer.up(h), layer.activation, layer.gated)
            delta = layer.down(activated)
            h = x.add_(delta) if next_norm is None else self.add_norm(x, delta, next_norm)
        return h


def attention(
    kernels: Kernels,
    layer: DecoderLayer,
    h: Tensor,
    kv: LayerKV,
    plan: Any,
    rotation: Rotation | None = None,
) -> Tensor:
    """A layer's attention with its projections: h [T, hidden] -> [T, hidden]."""
    heads = layer.num_heads, kv.keys.shape[1], kv.values.shape[1]
    dims = kv.keys.shape[3], kv.keys.shape[3], kv.values.shape[3]
    parts = torch.split(layer.qkv(h), [n * dim for n, dim in zip(heads, dims, strict=True)], dim=1)
    query, key, value = (
        part.view(len(h), n, dim) for part, n, dim in zip(parts, heads, dims, strict=True)
    )
    attended = kernels.attend(query, key, value, kv, layer.spec, plan, rotation)
    return layer.output(attended.flatten(1))
