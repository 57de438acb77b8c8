"""The norms of a decoder, out of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from quire.kernels.ops import Norm, Norms
from quire.models.blueprint import Blueprint, NormKind
from quire.models.parts import WHOLE, TensorPart, count_of
from quire.models.shard import Shard
from quire.models.weights import Weights


@dataclass(frozen=True)
class NormReader:
    """Takes the norms of a decoder, which are of one kind but where its plan says otherwise."""

    plan: Blueprint
    weights: Weights
    shard: Shard

    def take(
        self, name: str, width: int, part: TensorPart = WHOLE, kind: NormKind | None = None
    ) -> Norm:
        """The one called ``name``, or a part of it."""
        kind = kind or self.plan.norm
        weight, bias, take = None, None, self.weights.take
        if kind.around_one:
            take = self.weights.take_floats  # since 1 + w has more digits than w
            weight = take(f"{name}.weight", width, part=part) + 1
        elif kind.weight:
            weight = take(f"{name}.weight", width, part=part)
        if kind.bias:
            bias = take(f"{name}.bias", width, part=part)
        return Norm(count_of(part.rows, width), weight, kind.eps, bias, kind.centred)

    def around(
        self, prefix: str, before: str | None, output: str | None, factor: float = 1.0
    ) -> Norms:
        """The norms of a part of the layer ``prefix``, whose output is multiplied by ``factor``."""
        width = self.plan.hidden_size
        first, second = (
            None if name is None else self.take(f"{prefix}.{name}", width, kind=kind)
            for name, kind in ((before, None), (output, self.plan.output_norm))
        )
        if self.plan.norms_after:
            return Norms(after=first)
        return Norms(before=first, output=second, scale=factor * self.plan.residual_scale)

    def of_each_head(
        self, prefix: str, index: int, *, keys: bool = True
    ) -> tuple[Norm | None, Norm | None]:
        """The norms of queries and of keys, of each head alone; keys: whether there are some."""
        plan, names, dim = self.plan, self.plan.names, self.plan.heads_of(index).dim
        if plan.head_norms in ("each", "each turned"):
            query = self.take(f"{prefix}.{names.query_norm}", dim)
            return query, self.take(f"{prefix}.{names.key_norm}", dim) if keys else None
        rope = plan.rope_of[index]
        turned = rope is not None and plan.ropes[rope].rotated
        if plan.head_norms == "all bare" or (plan.head_norms == "bare" and turned):
            return Norm(dim, None, plan.norm.eps), Norm(dim, None, plan.norm.eps)
        return None, None

    def of_all_heads(self, prefix: str) -> tuple[Norm | None, Norm | None]:
        """The same of all heads together."""
        if self.plan.head_norms != "all":
            return None, None
        heads, names = self.plan.heads, self.plan.names
        query, key = f"{prefix}.{names.query_norm}", f"{prefix}.{names.key_norm}"
        return (
            self._of_heads_held(query, heads.num, self.shard.run(heads.num)),
            self._of_heads_held(key, heads.num_kv, self.shard.kv_heads(heads.num_kv)),
        )

    def sink_logits(self, prefix: str, index: int) -> Tensor | None:
        """The sink logits of query heads."""
        plan, names = self.plan, [f"{prefix}.{name}" for name in self.plan.names.sink_logits]
        if not names or (plan.sinks_in_windows and plan.windows[index] is None):
            return None
        held = self.shard.run(plan.heads.num)
        names += [f"{name}.weight" for name in names]  # as in GGUF files
        name = next((one for one in names if one in self.weights), names[0])
        part = TensorPart(slice(held.start, held.stop))
        return self.weights.take_floats(name, plan.heads.num, part=part)

    def _of_heads_held(self, name: str, count: int, held: range) -> Norm:
        width = self.plan.heads.dim
        part = TensorPart(slice(held.start * width, held.stop * width))
        return self.take(name, count * width, part)
