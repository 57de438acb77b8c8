"""Attention over latents (MLA; DeepSeek-AI, "DeepSeek-V2", 2024), as data and step by step.

Shapes use T, the new tokens of a step, H query heads, and of each head R numbers that positions
turn, N that they do not, and V of a value; L is the width of a latent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quire.kernels.layer_memory import KVShape, LayerKV
from quire.kernels.ops import AttentionSpec, Kernels, Norm, Rotation, SelfLatentAttention
from quire.models.linear import Joined, Linear


@dataclass(frozen=True)
class LatentAttention:
    """See ``SelfLatentAttention``."""

    inputs: Joined  # "q": what queries are made of, or they themselves; "kv": R + L numbers
    query_norm: Norm | None
    queries: Linear | None  # -> [T, H (R + N)]
    latent_norm: Norm
    keys: tuple[Linear, ...]  # by head: N -> L
    values: tuple[Linear, ...]  # by head: L -> V
    output: Linear
    spec: AttentionSpec
    rope: int | None = None  # which of the decoder's

    @property
    def num_heads(self) -> int:
        """Number of query heads."""
        return len(self.keys)

    @property
    def kept(self) -> KVShape:
        """What it keeps of each token."""
        return KVShape(1, self.inputs.parts["kv"], self.latent_norm.width, latent=True)

    def fusable(self) -> SelfLatentAttention:
        """The same for kernels that run layers whole."""
        return SelfLatentAttention(
            inputs=self.inputs.product,
            query_norm=self.query_norm,
            queries=self.queries,
            latent_norm=self.latent_norm,
            keys=self.keys,
            values=self.values,
            output=self.output,
            spec=self.spec,
            rotation=self.rope,
        )

    def attend(
        self,
        inputs: Tensor,
        kv: LayerKV,
        kernels: Kernels,
        plan: Any,
        rotations: Sequence[Rotation],
    ) -> Tensor:
        """What ``inputs`` gave [T, ...] -> [T, H V], for ``output``."""
        query, key = self.inputs.split(inputs)
        if self.queries is not None:
            normed = query if self.query_norm is None else kernels.norm(query, self.query_norm)
            query = self.queries(normed)
        latent = self.latent_norm.width
        turned = key.shape[1] - latent
        key = torch.cat((key[:, :turned], kernels.norm(key[:, turned:], self.latent_norm)), 1)
        heads = query.view(len(query), self.num_heads, -1)
        absorbed = _by_head(self.keys, heads[:, :, turned:])
        found = kernels.attend(
            torch.cat((heads[:, :, :turned], absorbed), 2),
            key[:, None],
            key[:, None, turned:],
            kv,
            self.spec,
            plan,
            None if self.rope is None else rotations[self.rope],
        )
        return _by_head(self.values, found).flatten(1)


def _by_head(products: Sequence[Linear], x: Tensor) -> Tensor:
    """x [T, H, in] -> [T, H, out], each head by its own weight."""
    return torch.stack([product(x[:, head]) for head, product in enumerate(products)], 1)
