"""Projections out of a GGUF file, multiplied in the rounding that they are stored in."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from quire.kernels.products import PackedWeight, Products
from quire.model.gguf.blocks import Rounded
from quire.model.linear import Linear, LinearReader
from quire.model.weights import Weights


class GGUFLinears(LinearReader):
    """Takes weights as ``LinearReader`` does."""

    def __init__(self, weights: Weights, products: Products) -> None:
        super().__init__(weights, products)
        self._packer = products

    def _read(self, sizes: Sequence[tuple[str, int]], inputs: int, bias: bool) -> Linear:
        if not any(self._is_rounded(f"{name}.weight") for name, _ in sizes):
            return super()._read(sizes, inputs, bias)
        parts = []
        for _, alike in groupby(sizes, lambda size: self._weights.stored(f"{size[0]}.weight")):
            run = list(alike)
            added = None
            if bias:
                added = torch.cat([self._weights.read(f"{name}.bias", n) for name, n in run])
            parts.append(self._pack([(f"{name}.weight", n) for name, n in run], inputs, added))
        return PackedWeight.joined(parts)

    def embedding_and_head(
        self, embedding: str, head: str, shape: tuple[int, int], tied: bool
    ) -> tuple[Linear, Linear]:
        """See ``LinearReader``. A rounded embedding stays so."""
        if not self._is_rounded(embedding):
            return super().embedding_and_head(embedding, head, shape, tied)
        table = self._table(embedding, *shape)
        return table, table if tied else self._table(head, *shape)

    def _table(self, name: str, outputs: int, inputs: int) -> Linear:
        if not self._is_rounded(name):
            return super()._table(name, outputs, inputs)
        return self._keep(self._pack([(name, outputs)], inputs, None))

    def _is_rounded(self, name: str) -> bool:
        return name in self._weights and self._weights.is_rounded(name)

    def _pack(
        self, sizes: Sequence[tuple[str, int]], inputs: int, bias: Tensor | None
    ) -> PackedWeight:
        """Of tensors that are stored alike."""
        if not self._is_rounded(sizes[0][0]):
            floats = [self._weights.read(name, size, inputs) for name, size in sizes]
            return PackedWeight.from_floats(self._packer, torch.cat(floats), bias)
        parts = [self._weights.read_rounded(name, size, inputs) for name, size in sizes]
        form, codes, groups = parts[0] if len(parts) == 1 else Rounded.joined(parts)
        return PackedWeight.from_groups(self._packer, form, codes, groups, bias)
