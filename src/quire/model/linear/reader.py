"""Projections out of a checkpoint, in the form that this machine multiplies best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from quire.kernels.packing import FLOAT_FORMATS
from quire.kernels.products import PackedWeight, Products
from quire.model.linear.base import Joined, Linear, PlainLinear
from quire.model.linear.checkpoints import GroupedCheckpoint
from quire.model.linear.packed import pack_grouped, pack_rounded
from quire.model.linear.rounding import Grouped, Quantization
from quire.model.weights import Weights


class LinearReader:
    """Takes weights from a checkpoint, which need not outlast it, and counts what is kept."""

    def __init__(
        self,
        weights: Weights,
        products: Products | None,
        quantization: Quantization | None = None,
        checkpoint: GroupedCheckpoint | None = None,
    ) -> None:
        """Without ``products`` there is neither ``quantization`` nor a rounded ``checkpoint``."""
        self._weights, self._products = weights, products
        self._quantization, self._checkpoint = quantization, checkpoint
        self.nbytes = 0

    def linear(self, name: str, inputs: int, outputs: int, bias: bool) -> Linear:
        """The projection called ``name``."""
        return self.joined([name], inputs, {name: outputs}, bias).product

    def joined(
        self,
        names: Sequence[str],
        inputs: int,
        parts: Mapping[str, int],
        bias: bool,
        order: Tensor | None = None,
    ) -> Joined:
        """One product that gives ``parts``, of so many outputs each, side by side.

        The checkpoint has a projection for each part, or a single one that is all of them. The
        tensors of each are called ``name.weight`` and, with ``bias``, ``name.bias``; in a rounded
        checkpoint as its format says. Their outputs are brought into the ``order`` of ``Joined``.
        """
        outputs = list(parts.values()) if len(names) > 1 else [sum(parts.values())]
        sizes = list(zip(names, outputs, strict=True))
        return Joined(self._keep(self._read(sizes, inputs, bias, order)), parts, order)

    def has(self, tensor: str) -> bool:
        """Whether the checkpoint has a tensor of that name."""
        return tensor in self._weights

    def exact(self, parts: Mapping[str, int], inputs: int) -> Linear:
        """Projections of these names and numbers of outputs, side by side and never rounded."""
        tensors = [
            self._weights.read(f"{name}.weight", size, inputs) for name, size in parts.items()
        ]
        return self._keep(self._form(torch.cat(tensors), None, None))

    def one_of(self, tensor: str, index: int, shape: tuple[int, int, int]) -> Linear:
        """The weight at ``index`` of a tensor that is many of one shape, [many, out, in]."""
        weight = self._weights.read_part(tensor, index, *shape)
        return self._keep(self._form(weight, None, self._quantization))

    def _read(
        self, sizes: Sequence[tuple[str, int]], inputs: int, bias: bool, order: Tensor | None
    ) -> Linear:
        weights, joined = self._weights, None
        if bias:
            joined = torch.cat([weights.read(f"{name}.bias", size) for name, size in sizes])
            joined = joined if order is None else joined[order]
        checkpoint, products = self._checkpoint, self._products
        if checkpoint is not None and products is not None and checkpoint.holds(sizes[0][0]):
            parts = [checkpoint.read(name, inputs, size) for name, size in sizes]
            grouped = Grouped.joined(parts)
            if order is not None:
                grouped = Grouped(*(tensor[order] for tensor in grouped))
            return pack_grouped(products, grouped, joined)
        tensors = [weights.read(f"{name}.weight", size, inputs) for name, size in sizes]
        weight = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
        weight = weight if order is None else weight[order]
        return self._form(weight, joined, self._quantization)

    def embedding_and_head(
        self,
        embedding: str,
        head: str,
        shape: tuple[int, int],
        tied: bool,
        head_bias: str | None = None,
    ) -> tuple[Linear, Linear]:
        """The tensors of these names, which are one if ``tied``.

        As in transformers 5, a head that is stored is used even where the config says tied.
        """
        bias = None if head_bias is None else self._weights.read(head_bias, shape[0])
        if tied and head not in self._weights:
            both = self._table(embedding, bias, *shape)
            return both, both
        return PlainLinear(self._weights.take(embedding, *shape)), self._table(head, bias, *shape)

    def _table(self, name: str, bias: Tensor | None, outputs: int, inputs: int) -> Linear:
        """The head, or an embedding that is one: the tensor called ``name`` itself.

        Rounded to int8 at most: int4 costs an embedding more than it saves.
        """
        quantization = self._quantization
        if quantization is Quantization.int4:
            quantization = Quantization.int8
        return self._keep(self._form(self._weights.read(name, outputs, inputs), bias, quantization))

    def _form(
        self, weight: Tensor, bias: Tensor | None, quantization: Quantization | None
    ) -> Linear:
        if self._products is not None:
            if quantization is not None:
                return pack_rounded(self._products, weight, bias, quantization)
            if weight.dtype in FLOAT_FORMATS:
                return PackedWeight.from_floats(self._products, weight, bias)
        return PlainLinear(weight, bias)

    def _keep(self, linear: Linear) -> Linear:
        self.nbytes += linear.nbytes
        return linear
