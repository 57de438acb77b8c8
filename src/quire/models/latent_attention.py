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
from quire.kernels.ops import (
    AttentionSpec,
    IndexSpec,
    Kernels,
    Norm,
    Rotation,
    SelfLatentAttention,
)
from quire.models.linear import Joined, Linear


@dataclass
class LayerPlans:
    """What kernels made of a step's batch, and of what the last index has chosen."""

    step: Any
    chosen: Any = None


@dataclass(frozen=True)
class Indexer:
    """Chooses the tokens that one attends to, by keys of their own (DeepSeek-AI, "DeepSeek-V3.2",
    2025).
    """

    queries: Linear  # of what attention's queries are made of: -> heads x width
    keys: Linear  # d -> width
    weights: Linear  # d -> heads, of float32
    spec: IndexSpec

    @property
    def width(self) -> int:
        """Numbers of a key."""
        return self.spec.key_norm.width

    def choose(
        self,
        hidden: Tensor,
        query: Tensor,
        kv: LayerKV,
        kernels: Kernels,
        plan: Any,
        rotation: Rotation | None,
    ) -> Any:
        """hidden [T, d], and what queries are made of -> the plan of what is chosen."""
        spec = self.spec
        weights = self.weights.floats(hidden) * (spec.heads * self.width) ** -0.5
        queries = self.queries(query).view(len(query), spec.heads, self.width)
        return kernels.choose(queries, self.keys(hidden), weights, kv, spec, plan, rotation)


@dataclass(frozen=True)
class LatentAttention:
    """See ``SelfLatentAttention``. With an ``indexer``, or one in an earlier layer (``follows``), a
    token attends to those that it chooses.
    """

    inputs: Joined  # "q": what queries are made of, or they themselves; "kv": R + L numbers
    query_norm: Norm | None
    queries: Linear | None  # -> [T, H (R + N)]
    latent_norm: Norm
    keys: tuple[Linear, ...]  # by head: N -> L
    values: tuple[Linear, ...]  # by head: L -> V
    output: Linear
    spec: AttentionSpec
    rope: int | None = None  # which of the decoder's
    indexer: Indexer | None = None
    follows: bool = False

    @property
    def num_heads(self) -> int:
        """Number of query heads."""
        return len(self.keys)

    @property
    def indexed(self) -> bool:
        """Whether tokens attend to those that are chosen."""
        return self.indexer is not None or self.follows

    @property
    def kept(self) -> KVShape:
        """What it keeps of each token."""
        index = 0 if self.indexer is None else self.indexer.width
        own, width = self.inputs.parts["kv"], self.latent_norm.width
        return KVShape(1, own, width, latent=True, in_rows=self.indexed, index_dim=index)

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
            indexed=self.indexed,
        )

    def attend(
        self,
        hidden: Tensor,
        inputs: Tensor,
        kv: LayerKV,
        kernels: Kernels,
        plans: LayerPlans,
        rotations: Sequence[Rotation],
    ) -> Tensor:
        """What the layer is given [T, d], and what ``inputs`` made of it -> [T, H V], for
        ``output``.
        """
        query, key = self.inputs.split(inputs)
        rotation = None if self.rope is None else rotations[self.rope]
        if self.queries is not None:
            made_of = query if self.query_norm is None else kernels.norm(query, self.query_norm)
            query = self.queries(made_of)
            if self.indexer is not None:
                plans.chosen = self.indexer.choose(
                    hidden, made_of, kv, kernels, plans.step, rotation
                )
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
            plans.chosen if self.indexed else plans.step,
            rotation,
        )
        return _by_head(self.values, found).flatten(1)


def _by_head(products: Sequence[Linear], x: Tensor) -> Tensor:
    """x [T, H, in] -> [T, H, out], each head by its own weight."""
    return torch.stack([product(x[:, head]) for head, product in enumerate(products)], 1)
