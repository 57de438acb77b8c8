"""The pool's memory as layers see it: keys and values by block, or states by slot.

Shapes use: B blocks in the pool, N tokens a block, Hkv key/value heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor


class KVShape(NamedTuple):
    """The shape of what one layer keeps for one token."""

    num_kv_heads: int
    key_dim: int
    value_dim: int
    latent: bool = False  # values are the last numbers of keys, and are not kept beside them
    in_rows: bool = False  # of latents: tokens may be chosen one by one, see ``LayerKV``
    index_dim: int = 0  # numbers of another key, by which they are chosen

    @property
    def kept(self) -> tuple[int, ...]:
        """Numbers of a head in each tensor of the pool."""
        if self.latent:
            return (self.key_dim, self.index_dim) if self.index_dim else (self.key_dim,)
        return (self.key_dim, self.value_dim)


class StateShape(NamedTuple):
    """The shape of what a layer keeps for one sequence, whatever its length; all in float32."""

    rows: tuple[int, int]  # channels, and their last inputs that a short convolution still sees
    state: tuple[int, ...]  # of the recurrence; (): the layer has none
    columns: int = 0  # that come in for a token

    @property
    def nbytes(self) -> int:
        return 4 * (prod(self.rows) + (prod(self.state) if self.state else 0))

    @property
    def draft_bytes(self) -> int:
        """Bytes kept for each draft."""
        return 4 * self.columns


class LayerKV(NamedTuple):
    """One layer's share of the pool, in which a block is contiguous: a tile N x D for each head.

    Its next block begins where the block has ended, or before that, where layers of other forms
    share the memory: then blocks' numbers are places in it, and not all of them are this layer's.

    The order of a tile's numbers is private to the kernels. Of a cache of 4 bits the last dimension
    is of bytes, which are half as many.
    """

    keys: Tensor  # [B, Hkv, N, key_dim]
    values: Tensor  # [B, Hkv, N, value_dim]; of latents [B, Hkv, N, 0]
    kv_group: int = 0  # of AttentionBatch.kv_groups: whose blocks these are
    key_scales: Tensor | None = None  # [B, Hkv, N] float32: what rounded keys are multiplied by
    value_scales: Tensor | None = None  # [B, Hkv, N] float32; of latents None: the keys' are theirs
    latent: int = 0  # numbers at the end of a key that are its value; 0: there are ``values``
    in_rows: bool = False  # tokens may be chosen one by one: a tile's keys lie one after another
    index_keys: Tensor | None = None  # [B, 1, N, width]: keys by which tokens are chosen, in rows
    index_scales: Tensor | None = None  # [B, 1, N] float32

    @classmethod
    def of(
        cls,
        shape: KVShape,
        numbers: Callable[[int], Tensor],
        kv_group: int = 0,
        scales: Callable[[], Tensor | None] = lambda: None,
    ) -> LayerKV:
        """A layer's memory. numbers: makes a tensor with this many numbers per token and head."""
        keys = numbers(shape.key_dim)
        if shape.latent:
            own = cls(keys, numbers(0), kv_group, scales(), None, shape.value_dim, shape.in_rows)
            if not shape.index_dim:
                return own
            return own._replace(index_keys=numbers(shape.index_dim), index_scales=scales())
        return cls(keys, numbers(shape.value_dim), kv_group, scales(), scales())

    @property
    def dims(self) -> tuple[int, int]:
        """Numbers of a key and of a value."""
        in_a_byte = 2 if self.keys.dtype == torch.uint8 else 1
        return self.keys.shape[3] * in_a_byte, self.latent or self.values.shape[3] * in_a_byte

    @property
    def block_rows(self) -> int:
        """Keys from one block's number to the next one's; values and scales as many."""
        return self.keys.stride(0) // self.keys.shape[3]

    @property
    def parts(self) -> list[Tensor]:
        """The tensors that are not empty, whose first dimension is the blocks."""
        every = (
            self.keys,
            self.values,
            self.key_scales,
            self.value_scales,
            self.index_keys,
            self.index_scales,
        )
        return [part for part in every if part is not None and part.numel()]


class LayerState(NamedTuple):
    """One layer's states, by slot: where it stands in the place of a ``LayerKV``.

    A state cannot be cut back. So it does not see drafts before they are confirmed: until then what
    came in for them is kept beside it.

    The order of a slot's numbers is private to the kernels.
    """

    rows: Tensor  # [slots, *StateShape.rows] float32
    state: Tensor  # [slots, *StateShape.state] float32; [slots, 0]: there is none
    inputs: Tensor  # [slots, most drafts, StateShape.columns] float32; empty: they are not kept

    @property
    def parts(self) -> list[Tensor]:
        """The tensors that are not empty, whose first dimension is the slots."""
        return [part for part in self if part.numel()]


LayerMemory = LayerKV | LayerState


def without_drafts(layer: LayerMemory) -> LayerMemory:
    """The same memory, but for what a state keeps of drafts."""
    return layer._replace(inputs=layer.inputs[:, :0]) if isinstance(layer, LayerState) else layer


class OwnMemory:
    """The memory of layers that keep something, taken by all layers in their order."""

    def __init__(self, kv: Sequence[LayerMemory]) -> None:
        self._all, self._next = kv, iter(kv)

    def of(self, source: int | None) -> LayerMemory:
        """The next layer's own memory; with ``source``, the memory of that one among them."""
        return next(self._next) if source is None else self._all[source]


def counterparts(
    source: Sequence[LayerMemory], target: Sequence[LayerMemory]
) -> Iterator[tuple[Tensor, Tensor]]:
    """The tensors of layers, each with the one that takes copies of its blocks."""
    for origin, destination in zip(source, target, strict=True):
        yield from zip(origin.parts, destination.parts, strict=True)
