"""Projections out of a checkpoint, in the form that this machine multiplies best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from quire.kernels.products import Products
from quire.model.linear.base import Joined, Linear, PlainLinear
from quire.model.linear.checkpoints import Checkpoint
from quire.model.linear.packed import pack, pack_parts
from quire.model.linear.rounding import Quantization, round_outputs, round_weight
from quire.model.linear.stored import Stored
from quire.model.weights import Weights


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

    @property
    def code_bytes(self) -> Mapping[str, int]:
        """What an element of a checkpoint that is no float takes, by its type."""
        return {} if self._checkpoint is None else self._checkpoint.code_bytes

    def linear(self, name: str, inputs: int, outputs: int, bias: bool) -> Linear:
        """The projection called ``name``."""
        return self.joined([name], inputs, {name: outputs}, bias).product

    def joined(
        self, names: Sequence[str], inputs: int, parts: Mapping[str, int], bias: bool
    ) -> Joined:
        """One product that gives ``parts``, of so many outputs each, side by side.

        The checkpoint has a projection for each part, or a single one that is all of them. The
        tensors of each are called ``name.weight`` and, with ``bias``, ``name.bias``; in a rounded
        checkpoint as its format says.
        """
        outputs = list(parts.values()) if len(names) > 1 else [sum(parts.values())]
        sizes = list(zip(names, outputs, strict=True))
        return Joined(self._keep(self._read(sizes, inputs, bias)), parts)

    def _read(self, sizes: Sequence[tuple[str, int]], inputs: int, bias: bool) -> Linear:
        weights, products = self._weights, self._products
        biases: list[Tensor | None] = [
            weights.read(f"{name}.bias", size) if bias else None for name, size in sizes
        ]
        if products is not None:
            parts = [self._stored(name, inputs, size) for name, size in sizes]
            return pack_parts(products, parts, biases, weights.dtype)
        tensors = [weights.read(f"{name}.weight", size, inputs) for name, size in sizes]
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
        self, embedding: str, head: str, shape: tuple[int, int], tied: bool
    ) -> tuple[Linear, Linear]:
        """The tensors of these names, which are one if ``tied``.

        As in transformers 5, a head that is stored is used even where the config says tied.
        """
        if tied and head not in self._weights:
            both = self._table(embedding, *shape)
            return both, both
        embed = PlainLinear(self._weights.take(embedding, *shape))
        name, checkpoint, products = head.removesuffix(".weight"), self._checkpoint, self._products
        if checkpoint is None or products is None or not checkpoint.holds(name):
            return embed, self._table(head, *shape)
        outputs, inputs = shape
        stored = checkpoint.read(name, inputs, outputs)
        return embed, self._keep(pack(products, stored, None))

    def _table(self, name: str, outputs: int, inputs: int) -> Linear:
        """The head, or an embedding that is one: the tensor called ``name`` itself.

        Rounded to int8 at most: int4 costs an embedding more than it saves.
        """
        weight = self._weights.read(name, outputs, inputs)
        if self._products is None:
            return self._keep(PlainLinear(weight))
        stored: Stored = weight
        if self._quantization is not None:
            stored = round_outputs(weight, self._quantization is Quantization.w8a8)
        return self._keep(pack(self._products, stored, None))

    def _keep(self, linear: Linear) -> Linear:
        self.nbytes += linear.nbytes
        return linear
