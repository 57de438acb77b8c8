"""Projections out of a checkpoint, in the form that this machine multiplies best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from quire.kernels.products import Products
from quire.model.linear.base import Joined, Linear, PlainLinear
from quire.model.linear.checkpoints import Checkpoint
from quire.model.linear.packed import pack, pack_parts
from quire.model.linear.rounding import Quantization, round_outputs, round_weight
from quire.model.stored import Stored, in_rows
from quire.model.weights import Weights


class NamedParts(NamedTuple):
    """What one product is made of."""

    inputs: int
    outputs: Mapping[str, int]  # of each projection of the checkpoint, side by side


class LinearReader:
    """Takes weights from a checkpoint, which need not outlast it, and counts what is kept."""

    def __init__(
        self,
        weights: Weights,
        products: Products | None,
        quantization: Quantization | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        """Without ``products`` there is neither ``quantization`` nor a rounded ``checkpoint``."""
        self._weights, self._products = weights, products
        self._quantization, self._checkpoint = quantization, checkpoint
        self.nbytes = 0
        self.named: dict[int, NamedParts] = {}  # by the id of a product, which its model keeps

    @property
    def code_bytes(self) -> Mapping[str, float]:
        """What an element of a checkpoint that is no float takes, by its type."""
        return {} if self._checkpoint is None else self._checkpoint.code_bytes

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
        product = self._keep(self._read(sizes, inputs, bias, order))
        self.named[id(product)] = NamedParts(inputs, dict(sizes))
        return Joined(product, parts, order)

    def has(self, tensor: str) -> bool:
        """Whether the checkpoint has a tensor of that name."""
        return tensor in self._weights

    def exact(self, parts: Mapping[str, int], inputs: int) -> Linear:
        """Projections of these names and numbers of outputs, side by side and never rounded."""
        tensors = [
            self._weights.read(f"{name}.weight", size, inputs) for name, size in parts.items()
        ]
        return self._keep(self._packed(torch.cat(tensors)))

    def one_of(self, tensor: str, index: int, shape: tuple[int, int, int]) -> Linear:
        """The weight at ``index`` of a tensor that is many of one shape, [many, out, in]."""
        weight = self._weights.read_part(tensor, index, *shape)
        if self._quantization is None:
            return self._keep(self._packed(weight))
        return self._keep(self._packed(round_weight(weight, self._quantization, False)))

    def _packed(self, weight: Stored) -> Linear:
        if self._products is not None:
            return pack(self._products, weight, None)
        assert isinstance(weight, Tensor), "rounding needs products"
        return PlainLinear(weight)

    def _read(
        self, sizes: Sequence[tuple[str, int]], inputs: int, bias: bool, order: Tensor | None
    ) -> Linear:
        weights, products = self._weights, self._products
        orders = _orders_of(sizes, order)
        biases: list[Tensor | None] = [None] * len(sizes)
        if bias:
            biases = [
                _in_rows(weights.read(f"{name}.bias", size), own)
                for (name, size), own in zip(sizes, orders, strict=True)
            ]
        if products is not None:
            parts = [
                in_rows(self._stored(name, inputs, size), own)
                for (name, size), own in zip(sizes, orders, strict=True)
            ]
            return pack_parts(products, parts, biases, weights.dtype)
        tensors = [
            _in_rows(weights.read(f"{name}.weight", size, inputs), own)
            for (name, size), own in zip(sizes, orders, strict=True)
        ]
        found = [part for part in biases if part is not None]
        return PlainLinear(torch.cat(tensors), torch.cat(found) if found else None)

    def _stored(self, name: str, inputs: int, outputs: int) -> Stored:
        """A projection as it is to be multiplied."""
        if self._checkpoint is not None and self._checkpoint.holds(name):
            return self._checkpoint.read(name, inputs, outputs)
        weight = self._weights.read(f"{name}.weight", outputs, inputs)
        if self._quantization is None:
            return weight
        attention = any(word in name for word in ("attn", "attention"))
        return round_weight(weight, self._quantization, attention)

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
        if self._rounded_table(embedding) is None:
            embed: Linear = PlainLinear(self._weights.take(embedding, *shape))
        else:
            embed = self._table(embedding, None, *shape)
        return embed, self._table(head, bias, *shape)

    def _table(self, name: str, bias: Tensor | None, outputs: int, inputs: int) -> Linear:
        """The head, or an embedding that is one: the tensor called ``name`` itself.

        Rounded to int8 at most: int4 costs an embedding more than it saves.
        """
        if self._products is None:
            return self._keep(PlainLinear(self._weights.read(name, outputs, inputs), bias))
        checkpoint = self._rounded_table(name)
        stored: Stored
        if checkpoint is not None:
            stored = checkpoint.read(name.removesuffix(".weight"), inputs, outputs)
        else:
            stored = weight = self._weights.read(name, outputs, inputs)
            if self._quantization is not None:
                stored = round_outputs(weight, self._quantization is Quantization.w8a8)
        return self._keep(pack(self._products, stored, bias))

    def _rounded_table(self, name: str) -> Checkpoint | None:
        """The checkpoint, if it has this one rounded."""
        if self._products is None or self._checkpoint is None or self._weights.has_floats(name):
            return None
        return self._checkpoint if self._checkpoint.holds(name.removesuffix(".weight")) else None

    def _keep(self, linear: Linear) -> Linear:
        self.nbytes += linear.nbytes
        return linear


def _orders_of(sizes: Sequence[tuple[str, int]], order: Tensor | None) -> list[Tensor | None]:
    """The order of each part's outputs, of which none leaves its part."""
    if order is None:
        return [None] * len(sizes)
    orders: list[Tensor | None] = []
    first = 0
    for _, size in sizes:
        orders.append(order[first : first + size] - first)
        first += size
    return orders


def _in_rows(tensor: Tensor, order: Tensor | None) -> Tensor:
    return tensor if order is None else tensor[order]
