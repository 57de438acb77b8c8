"""Projections out of a checkpoint, in the form that this machine multiplies best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from quire.kernels.products import Products
from quire.models.linear.base import Joined, Linear, PlainLinear, WatchedLinear
from quire.models.linear.checkpoints import GGUF, RoundedProjections
from quire.models.linear.packed import pack, pack_parts
from quire.models.linear.rounding import (
    Multiplied,
    Quantization,
    bits_for,
    columns_to_round,
    round_weight,
)
from quire.models.parts import ALL, Rows, TensorPart, as_rows, within
from quire.models.shape import MOST_BITS, least_bits
from quire.models.shard import Shard
from quire.models.stored import Stored, bits_of, in_columns, rounding_rows
from quire.models.weights import Weights

WHOLE_MODEL = Shard()


class NamedPart(NamedTuple):
    """A part of a product: a projection of the checkpoint, or the held part of it."""

    name: str
    outputs: int  # of the checkpoint's
    rows: Rows  # of these, those that are held


class NamedParts(NamedTuple):
    """The parts of one product."""

    inputs: int  # of the checkpoint's
    columns: slice  # of these, those that are held
    parts: tuple[NamedPart, ...]  # side by side


class Given(NamedTuple):
    """A projection that somebody else has read."""

    weight: Tensor  # [out, in]
    bias: Tensor | None  # [out]


class Stack(NamedTuple):
    """A tensor that is many weights of one shape."""

    name: str
    shape: tuple[int, int, int]  # [many, out, in]
    turned: bool = False  # it is stored as [many, in, out]
    biased: bool = False  # by the tensor ``name_bias`` [many, out]

    @property
    def stored_shape(self) -> tuple[int, int, int]:
        many, outputs, inputs = self.shape
        return (many, inputs, outputs) if self.turned else self.shape


class LinearReader:
    """Takes weights from a checkpoint, which need not outlast it, and counts what is kept.

    Sizes are the checkpoint's; ``rows`` and ``columns`` say what of it a rank holds.
    """

    def __init__(
        self,
        weights: Weights,
        products: Products | None,
        quantization: Quantization | None = None,
        checkpoint: RoundedProjections | None = None,
        shard: Shard = WHOLE_MODEL,
        of_experts: Products | None = None,
        watched: bool = False,
    ) -> None:
        """Without ``products`` there is neither ``quantization`` nor a rounded ``checkpoint``.

        of_experts: for experts, where they are kept elsewhere. watched: projections are read as
            they multiply.
        """
        self._weights, self._products = weights, products
        self._quantization, self._checkpoint = quantization, checkpoint
        self.shard = shard
        self.multiplied: Mapping[str, Multiplied] = {}  # by projection
        self.watched = watched
        self._nbytes = 0
        self.named: dict[int, NamedParts] = {}  # by the id of a product, which its model keeps
        self.experts = self  # reads the experts of mixtures
        if of_experts is not None:
            self.experts = LinearReader(weights, of_experts, quantization, checkpoint, shard)
            self.experts.named = self.named

    @property
    def nbytes(self) -> int:
        """Bytes of all weights that are kept, wherever they are."""
        return self._nbytes + (0 if self.experts is self else self.experts.nbytes)

    @property
    def code_bytes(self) -> Mapping[str, float]:
        """Bytes of an element of the checkpoint that is not a float, by its type."""
        return {} if self._checkpoint is None else self._checkpoint.code_bytes

    @property
    def packs(self) -> bool:
        """Whether weights are kept as the products have them."""
        return self._products is not None

    @property
    def rounds(self) -> bool:
        """Whether weights are rounded as they are read."""
        return self._quantization is not None

    @property
    def weighs_inputs(self) -> bool:
        """Whether rounding depends on the inputs, and projections can be read as floats."""
        chosen, before = self._quantization, self._checkpoint
        if chosen is None or not (before is None or isinstance(before, GGUF)):
            return False
        return chosen.has_4_bits or (chosen.rounds_rows and before is None)

    def numbers(self, names: Sequence[str], count: int) -> Tensor:
        """[count] float32, of the first of these that the checkpoint has."""
        name = next((name for name in names if name in self._weights), names[0])
        rows = (1,) * (len(self._weights.shape(name) or (0,)) - 1)  # a row is kept as one, too
        return self._weights.take_floats(name, *rows, count).flatten()

    def linear(
        self, name: str, inputs: int, outputs: int, bias: bool, columns: slice = ALL
    ) -> Linear:
        """The projection called ``name``.

        columns: of its inputs, those that are held. What ranks give is added up then, so that
        only the first has the bias.
        """
        if bias and columns is not ALL and self.shard.rank > 0:
            self._weights.leave((f"{name}.bias",))
            bias = False
        return self._joined([NamedPart(name, outputs, ALL)], inputs, bias, columns)

    def joined(
        self,
        names: Sequence[str],
        inputs: int,
        parts: Mapping[str, int],
        bias: bool,
        rows: Mapping[str, Tensor] | None = None,
    ) -> Joined:
        """One product that gives ``parts``, each with its number of outputs, side by side.

        The checkpoint has a projection for each part, or a single one that is all of them. The
        tensors of each are called ``name.weight`` and, with ``bias``, ``name.bias``; in a quantised
        checkpoint as its format says.

        rows: by part, which of the checkpoint's outputs, side by side, it has, in which order;
            None: all, as they come.
        """
        outputs = list(parts.values()) if len(names) > 1 else [sum(parts.values())]
        chosen = None if rows is None else torch.cat(list(rows.values()))
        named, first = [], 0
        for name, count in zip(names, outputs, strict=True):
            named.append(NamedPart(name, count, _rows_of(chosen, first, count)))
            first += count
        held = parts if rows is None else {name: len(own) for name, own in rows.items()}
        return Joined(self._joined(named, inputs, bias, ALL), held)

    def _joined(
        self, parts: Sequence[NamedPart], inputs: int, bias: bool, columns: slice
    ) -> Linear:
        product: Linear
        if self.watched:
            held = len(range(inputs)[columns])
            read = partial(self._read, parts, inputs, bias, columns)
            product = WatchedLinear(read, torch.zeros(held), torch.zeros(held))
        else:
            product = self._keep(self._read(parts, inputs, bias, columns))
        self.named[id(product)] = NamedParts(inputs, columns, tuple(parts))
        return product

    def given(self, parts: Mapping[str, Given], *, exact: bool = False) -> Linear:
        """One product of projections that are here already, rounded as if they were read.

        exact: they are never rounded. All of them have a bias, or none has.
        """
        stored: list[Stored] = [one.weight for one in parts.values()]
        if not exact:
            stored = [self._rounded(name, one.weight) for name, one in parts.items()]
        biases = [one.bias for one in parts.values()]
        return self._keep(self._side_by_side(stored, biases))

    def given_table(self, head: Given) -> Linear:
        """The head that is here already, which may be the embedding too."""
        weight: Stored = head.weight
        if self._quantization is not None:
            weight = round_weight(head.weight, self._quantization, MOST_BITS)
        return self._keep(self._packed(weight, head.bias))

    def has(self, tensor: str) -> bool:
        """Whether the checkpoint has a tensor of that name."""
        return tensor in self._weights

    def has_stack(self, name: str) -> bool:
        """Whether the checkpoint has a ``Stack`` of that name, of floats or rounded."""
        return name in self._weights or f"{name}_blocks" in self._weights

    def has_turned(self, stack: Stack) -> bool:
        """Whether the stack is there with its inputs before its outputs, by its shape."""
        many, outputs, inputs = stack.shape
        return outputs != inputs and self._weights.shape(stack.name) == (many, inputs, outputs)

    def exact(self, parts: Mapping[str, int], inputs: int, bias: bool = False) -> Linear:
        """Projections of these names and numbers of outputs, side by side and never rounded, not
        to the model's dtype either: what chooses hangs on the last digits.
        """
        read = partial(self._weights.read, exact=True)
        tensors = [read(f"{name}.weight", size, inputs) for name, size in parts.items()]
        biases = [read(f"{name}.bias", size) for name, size in parts.items()] if bias else []
        return self._keep(self._packed(torch.cat(tensors), torch.cat(biases) if bias else None))

    def floats(self, name: str, inputs: int, outputs: int, rows: Rows = ALL) -> Tensor:
        """These rows of the projection called ``name``, whatever it is stored in."""
        if self._checkpoint is not None and self._checkpoint.holds(name):
            stored = self._checkpoint.read(name, inputs, outputs, rows)
            return stored if isinstance(stored, Tensor) else stored.floats(self._weights.dtype)
        return self._weights.read(f"{name}.weight", outputs, inputs, part=TensorPart(rows))

    def as_stored(self, name: str, inputs: int, outputs: int) -> Linear:
        """The projection called ``name``, never rounded further."""
        if self._checkpoint is None or not self._checkpoint.holds(name):
            return self.kept(self.floats(name, inputs, outputs))
        return self._keep(self._packed(self._checkpoint.read(name, inputs, outputs)))

    def kept(self, weight: Tensor) -> Linear:
        """The product of a weight of floats."""
        return self._keep(self._packed(weight))

    def one_of(self, stack: Stack, which: int, rows: Rows = ALL, columns: slice = ALL) -> Linear:
        """One of its weights; of its inputs ``columns``, as for ``linear``."""
        (_, outputs, inputs), bias = stack.shape, None
        if stack.biased:
            name = f"{stack.name}_bias"
            part = TensorPart(rows, ALL, which)
            bias = self._weights.read(name, *stack.shape[:2], part=part)
            if columns is not ALL and self.shard.rank > 0:
                bias = None
        name, checkpoint = f"{stack.name}.{which}", self._checkpoint
        if checkpoint is not None and stack.name not in self._weights and checkpoint.holds(name):
            stored = self._rounded_before(checkpoint, name, (outputs, inputs), rows, columns)
        else:
            part = TensorPart(rows, ALL, which, stack.turned)
            stored = self._floats(stack.name, stack.stored_shape, part, columns)
        return self._keep(self._packed(stored, bias))

    def _packed(self, weight: Stored, bias: Tensor | None = None) -> Linear:
        if self._products is not None:
            return pack(self._products, weight, bias)
        assert isinstance(weight, Tensor), "rounding needs products"
        return PlainLinear(weight, bias)

    def _read(self, parts: Sequence[NamedPart], inputs: int, bias: bool, columns: slice) -> Linear:
        weights = self._weights
        biases: list[Tensor | None] = [None] * len(parts)
        if bias:
            biases = [
                weights.read(f"{name}.bias", size, part=TensorPart(rows))
                for name, size, rows in parts
            ]
        stored = [self._stored(name, inputs, size, rows, columns) for name, size, rows in parts]
        return self._side_by_side(stored, biases)

    def _side_by_side(self, stored: Sequence[Stored], biases: Sequence[Tensor | None]) -> Linear:
        if self._products is not None:
            return pack_parts(self._products, stored, biases, self._weights.dtype)
        tensors = [one for one in stored if isinstance(one, Tensor)]  # nothing is rounded
        found = [one for one in biases if one is not None]
        return PlainLinear(torch.cat(tensors), torch.cat(found) if found else None)

    def _stored(self, name: str, inputs: int, outputs: int, rows: Rows, columns: slice) -> Stored:
        """A projection as it is to be multiplied."""
        if self._checkpoint is not None and self._checkpoint.holds(name):
            return self._rounded_before(self._checkpoint, name, (outputs, inputs), rows, columns)
        return self._floats(f"{name}.weight", (outputs, inputs), TensorPart(rows), columns)

    def _rounded_before(
        self,
        checkpoint: RoundedProjections,
        name: str,
        shape: tuple[int, int],
        rows: Rows,
        columns: slice,
    ) -> Stored:
        """A projection of a rounded checkpoint. Its codes stay, unless they have too many bits."""
        (outputs, inputs), quantization = shape, self._quantization
        if quantization is None:
            return checkpoint.read(name, inputs, outputs, rows, columns)
        outer, dtype = columns_to_round(quantization, columns, inputs), self._weights.dtype
        stored = checkpoint.read(name, inputs, outputs, rows, outer)
        if isinstance(stored, Tensor) or bits_of(stored) > quantization.most_bits:
            weight = stored if isinstance(stored, Tensor) else stored.floats(dtype)
            stored = self._rounded(name, weight, outer, shape)
        else:
            stored = rounding_rows(stored)
        return in_columns(stored, within(outer, columns), dtype)

    def _floats(
        self, tensor: str, shape: tuple[int, ...], part: TensorPart, columns: slice
    ) -> Stored:
        """These columns of a part, rounded as the whole would be, if weights are to be."""
        if self._quantization is None:
            return self._weights.read(tensor, *shape, part=part._replace(columns=columns))
        outputs, inputs = reversed(shape[-2:]) if part.turned else shape[-2:]
        outer = columns_to_round(self._quantization, columns, inputs)
        weight = self._weights.read(tensor, *shape, part=part._replace(columns=outer))
        rounded = self._rounded(tensor.removesuffix(".weight"), weight, outer, (outputs, inputs))
        return in_columns(rounded, within(outer, columns), self._weights.dtype)

    def _rounded(
        self,
        name: str,
        weight: Tensor,
        columns: slice = ALL,
        whole: tuple[int, int] | None = None,
    ) -> Stored:
        """These columns of the projection called ``name``, if weights are to be rounded."""
        if self._quantization is None:
            return weight
        outputs, inputs = whole or weight.shape
        multiplied = self.multiplied.get(name)
        if multiplied is not None:
            multiplied = Multiplied(*(numbers[columns] for numbers in multiplied))
        bits = bits_for(name, (outputs, inputs))
        return round_weight(weight, self._quantization, bits, inputs, multiplied)

    def embedding_and_head(
        self,
        embedding: str,
        head: str,
        shape: tuple[int, int],
        tied: bool,
        head_bias: str | None = None,
    ) -> tuple[Linear, Linear]:
        """The tensors of these names, which are one if ``tied``.

        As in transformers 5, a head that is stored is used even where the config says tied. Of one
        that is tied either may be stored: savers keep one of two names.
        """
        part = TensorPart(self._vocabulary(shape[0]))
        bias = None if head_bias is None else self._weights.read(head_bias, shape[0], part=part)
        own = NamedPart(embedding.removesuffix(".weight"), shape[0], part.rows)
        of_head = own._replace(name=head.removesuffix(".weight"))
        if tied and not (self._has_table(head) and self._has_table(embedding)):
            name = head if self._has_table(head) else embedding
            both = self._table(name, bias, shape, MOST_BITS)
            self.named[id(both)] = NamedParts(shape[1], ALL, (own, of_head))
            return both, both
        rounded = self._quantization is not None and self._quantization.has_4_bits
        if not rounded and self._rounded_table(embedding) is None:
            embed: Linear = PlainLinear(self._weights.take(embedding, *shape, part=part))
        else:
            embed = self._table(embedding, None, shape, least_bits(shape[1:]))
        found = self._table(head, bias, shape, MOST_BITS)
        self.named[id(embed)] = NamedParts(shape[1], ALL, (own,))
        self.named[id(found)] = NamedParts(shape[1], ALL, (of_head,))
        return embed, found

    def table(self, name: str, outputs: int, inputs: int) -> Linear:
        """An embedding that is no head."""
        if self._quantization is None and self._rounded_table(name) is None:
            part = TensorPart(self._vocabulary(outputs))
            return PlainLinear(self._weights.take(name, outputs, inputs, part=part))
        return self._table(name, None, (outputs, inputs), least_bits((inputs,)))

    def _table(self, name: str, bias: Tensor | None, shape: tuple[int, int], bits: int) -> Linear:
        """The head, or an embedding: the tensor called ``name`` itself. bits: in forms of 4."""
        outputs, inputs = shape
        rows = self._vocabulary(outputs)
        if self._products is None:
            weight = self._weights.read(name, outputs, inputs, part=TensorPart(rows))
            return self._keep(PlainLinear(weight, bias))
        checkpoint = self._rounded_table(name)
        stored: Stored
        if checkpoint is not None:
            stored = checkpoint.read(name.removesuffix(".weight"), inputs, outputs, rows)
        else:
            stored = self._weights.read(name, outputs, inputs, part=TensorPart(rows))
        if self._quantization is not None:
            if isinstance(stored, Tensor):
                multiplied = self.multiplied.get(name.removesuffix(".weight"))
                stored = round_weight(stored, self._quantization, bits, multiplied=multiplied)
            else:
                stored = rounding_rows(stored)
        return self._keep(pack(self._products, stored, bias))

    def _has_table(self, name: str) -> bool:
        return name in self._weights or self._rounded_table(name) is not None

    def _vocabulary(self, count: int) -> slice:
        held = self.shard.run(count)
        return ALL if self.shard.is_whole else slice(held.start, held.stop)

    def _rounded_table(self, name: str) -> RoundedProjections | None:
        """The checkpoint, if it has this one rounded."""
        if self._products is None or self._checkpoint is None or self._weights.has_floats(name):
            return None
        return self._checkpoint if self._checkpoint.holds(name.removesuffix(".weight")) else None

    def _keep(self, linear: Linear) -> Linear:
        self._nbytes += linear.nbytes
        return linear


def _rows_of(chosen: Tensor | None, first: int, count: int) -> Rows:
    """The chosen ones of ``count`` outputs from ``first`` on."""
    if chosen is None:
        return ALL
    return as_rows(chosen[(chosen >= first) & (chosen < first + count)] - first)
