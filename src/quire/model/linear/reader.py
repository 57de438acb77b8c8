"""Projections out of a checkpoint, in the form that this machine multiplies best."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quire.kernels.packing import FLOAT_FORMATS
from quire.kernels.products import PackedWeight, Products
from quire.model.linear.base import Linear, PlainLinear
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

    def linear(
        self, names: Sequence[str], inputs: int, outputs: Sequence[int], bias: bool
    ) -> Linear:
        """One projection that gives what ``names`` give, side by side.

        The tensors of each are called ``name.weight`` and, with ``bias``, ``name.bias``; in a
        rounded checkpoint as its format says.
        """
        weights, sizes = self._weights, list(zip(names, outputs, strict=True))
        joined = None
        if bias:
            joined = torch.cat([weights.read(f"{name}.bias", size) for name, size in sizes])
        checkpoint, products = self._checkpoint, self._products
        if checkpoint is not None and products is not None and checkpoint.holds(names[0]):
            parts = [checkpoint.read(name, inputs, size) for name, size in sizes]
            grouped = Grouped.joined(parts)
            return self._keep(pack_grouped(products, grouped, joined))
        tensors = [weights.read(f"{name}.weight", size, inputs) for name, size in sizes]
        weight = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
        return self._keep(self._form(weight, joined, self._quantization))

    def table(self, name: str, outputs: int, inputs: int) -> Linear:
        """The head, or an embedding that is one: the tensor called ``name`` itself.

        Rounded to int8 at most: int4 costs an embedding more than it saves.
        """
        quantization = self._quantization
        if quantization is Quantization.int4:
            quantization = Quantization.int8
        return self._keep(self._form(self._weights.read(name, outputs, inputs), None, quantization))

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
