"""Attention of an architecture in ``transformers``, over block tables.

Its code calls a function of ours with queries, keys and values. Where all around that is what our
own models do, one module of ours does it with fewer operations: both are run on the same, and it
takes the place of what gives the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from quire.core.errors import reason
from quire.kernels.layer_memory import LayerKV
from quire.kernels.ops import AttentionSpec, Kernels, Norm, Rotation
from quire.models.transformers_parts import Normed, alike
from quire.models.transformers_products import JoinedProduct, Product

_LOG = logging.getLogger(__name__)


@dataclass
class PagedStep:
    """One step on its way through the layers."""

    kv: Sequence[LayerKV]
    kernels: Kernels
    plan: Any
    specs: Sequence[AttentionSpec]
    layer: int = 0  # the next to call attention
    rotations: dict[int, tuple[Tensor, Rotation]] = field(default_factory=dict)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, rotation: Rotation | None = None
    ) -> Tensor:
        """See ``Kernels.attend``; of the next layer."""
        layer, self.layer = self.layer, self.layer + 1
        kv, spec = self.kv[layer], self.specs[layer]
        return self.kernels.attend(query, key, value, kv, spec, self.plan, rotation)

    def rotation(self, cos: Tensor, sin: Tensor) -> Rotation:
        """cos and sin [1, T, 2 R] of pairs of dimensions, made once for all layers."""
        known = self.rotations.get(id(cos))
        if known is None:
            half = cos.shape[-1] // 2
            turns = (part[0, :, :half].float().contiguous() for part in (cos, sin))
            known = self.rotations[id(cos)] = cos, Rotation(*turns)
        return known[1]


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    quire_step: PagedStep,
    **_: Any,
) -> tuple[Tensor, None]:
    """An attention function for ``transformers.AttentionInterface``.

    query [1, H, T, D], key [1, Hkv, T, D], value [1, Hkv, T, Dv] -> [1, T, H, Dv]. Keyword
    arguments were judged by the probe; what they ask for is in the layer's AttentionSpec.
    """
    query, key, value = (part[0].transpose(0, 1) for part in (query, key, value))
    return quire_step.attend(query, key, value)[None], None


class FusedAttention(nn.Module):
    """Replaces attention: output(attend(qkv(x))), with norms and a rotation in between."""

    def __init__(
        self,
        qkv: JoinedProduct,
        output: JoinedProduct,
        norms: tuple[Norm, Norm] | None,
        *,
        rotated: bool,
    ) -> None:
        """norms: of queries and keys, before they are turned; of each head or of all together."""
        super().__init__()
        self.qkv, self.output, self.norms, self.rotated = qkv, output, norms, rotated
        self.layer = 0  # of those that attend
        self.divided = False  # whether ranks have parts

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: Sequence[Tensor] = (),
        *_: Any,
        quire_step: PagedStep,
        **__: Any,
    ) -> tuple[Tensor, None]:
        """hidden_states [1, T, d] -> [1, T, d]."""
        step, (rows, dim) = quire_step, hidden_states.shape[1:]
        self.layer = step.layer
        kv = step.kv[step.layer]
        heads, (key_dim, value_dim) = kv.keys.shape[1], kv.dims
        joined = self.qkv.rows(hidden_states.reshape(rows, dim))
        others = [heads * key_dim, heads * value_dim]
        sizes = [joined.shape[1] - sum(others), *others]
        if sizes[0] * value_dim != self.output.inputs * key_dim:
            raise ValueError("there is more beside queries, keys and values")
        query, key, value = torch.split(joined, sizes, dim=1)
        if self.norms is not None:
            query, key = (
                step.kernels.norm(part.reshape(-1, norm.width), norm)
                for part, norm in zip((query, key), self.norms, strict=True)
            )
        rotation = step.rotation(*position_embeddings) if self.rotated else None
        attended = step.attend(
            query.view(rows, -1, key_dim),
            key.view(rows, heads, key_dim),
            value.view(rows, heads, value_dim),
            rotation,
        )
        return self.output.rows(attended.flatten(1))[None], None


class _Comparing(nn.Module):
    """A module beside what might be the same."""

    def __init__(self, module: nn.Module, others: Sequence[nn.Module], exactly: bool) -> None:
        super().__init__()
        self.module, self.same, self.exactly = module, list(others), exactly

    def forward(self, *args: Any, quire_step: PagedStep | None = None, **keywords: Any) -> Any:
        if quire_step is None:  # it is nothing that attends
            self.same = []
            return self.module(*args, **keywords)
        layer, given = quire_step.layer, []
        for one in self.same:
            quire_step.layer = layer
            try:
                given.append((one, one(*args, quire_step=quire_step, **keywords)))
            except Exception as error:  # it is called with something else
                _LOG.debug("other than %s: %s", type(one).__name__, reason(error))
        quire_step.layer = layer
        wanted = self.module(*args, quire_step=quire_step, **keywords)  # last: its keys are kept
        self.same = [one for one, got in given if self._alike(got, wanted)]
        return wanted

    def _alike(self, got: Any, wanted: Any) -> bool:
        if isinstance(wanted, tuple) and isinstance(got, tuple):
            return len(wanted) == len(got) == 2 and self._alike(got[0], wanted[0])
        if not isinstance(wanted, Tensor) or not isinstance(got, Tensor):
            return False
        return torch.equal(got, wanted) if self.exactly else alike(got, wanted)


class Candidates:
    """Modules of a decoder, each beside what might be the same, until it is known."""

    def __init__(
        self,
        decoder: nn.Module,
        others: Callable[[nn.Module], Iterator[nn.Module]],
        *,
        exactly: bool,
    ) -> None:
        """others: what a module might be. exactly: the same is the same bits."""
        self._found: list[tuple[nn.Module, str, _Comparing]] = []
        for parent in list(decoder.modules()):
            for attribute, module in list(parent.named_children()):
                if found := list(others(module)):
                    comparing = _Comparing(module, found, exactly)
                    self._found.append((parent, attribute, comparing))
                    setattr(parent, attribute, comparing)

    def settle(self) -> None:
        """Put what has given the same in all calls in its place, and the others back."""
        for parent, attribute, comparing in self._found:
            setattr(parent, attribute, [*comparing.same, comparing.module][0])
            if comparing.same:
                _LOG.debug("%s instead of %s", comparing.same[0], type(comparing.module).__name__)


def fused_attention(module: nn.Module) -> Iterator[FusedAttention]:
    """What a module may be, if it is attention."""
    parts = [part for part in module.children() if not isinstance(part, nn.Dropout)]
    products = [part for part in parts if isinstance(part, Product)]
    norms = [part.norm for part in parts if isinstance(part, Normed)]
    joined = list(dict.fromkeys(part.joined for part in products))
    alone = len(joined) == 2 and sum(len(one.sizes) for one in joined) == len(products)
    if not alone or len(products) + len(norms) < len(parts) or len(norms) not in (0, 2):
        return
    both = (norms[0], norms[1]) if norms else None
    for rotated in (True, False):
        yield FusedAttention(joined[0], joined[1], both, rotated=rotated)
