"""Matrix products in C++ (csrc/products/products.cpp), with weights that are packed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from quire.kernels.packing import (
    FLOAT_FORMATS,
    SPREAD_GROUPS,
    Format,
    Groups,
    pack_codes,
    pack_floats,
    pack_groups,
    panel_values,
)
from quire.kernels.pages import HugePages

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""Of x and the result, by their codes in C++."""


class Products:
    """The C++ products of one instruction set, by default the best that the machine has.

    Except for the rounding of sums, results do not depend on how many rows are multiplied at once.
    For one thread at a time.
    """

    def __init__(
        self, instruction_set: str = "", piece: Callable[[int], Tensor] | None = None
    ) -> None:
        """piece: of the memory that weights are packed into, see ``HugePages``.

        ValueError if the machine lacks the instruction set.
        """
        from quire.kernels import _native

        self.native = _native.Products(instruction_set)
        self.describe = _native.Packed.make
        self.memory = HugePages(piece)


class PackedWeight:
    """A weight [out, in] and perhaps a bias [out] in the order of the products."""

    def __init__(
        self,
        products: Products,
        form: Format,
        shape: tuple[int, int],
        lines: Tensor,
        bias: Tensor | None,
        scales: Tensor | None = None,
        groups: Groups | None = None,
        rounds_rows: bool = False,
    ) -> None:
        """See ``from_floats``, ``from_int8`` and ``from_groups``."""
        self.outputs, self.inputs = shape
        self._form = form
        group = 0 if groups is None else groups.num_groups
        self._kind = form, rounds_rows, group, *shape
        self._rest: PackedWeight | None = None
        self._smoothed = self._spread = False
        bias = None if bias is None else bias.float().contiguous()
        self._multiply, self._embed = products.native.multiply, products.native.embed
        self.native = products.describe(
            form.value,
            rounds_rows,
            self.inputs,
            self.outputs,
            *map(_address, (lines, scales, bias)),
        )
        self._tensors = [part for part in (lines, scales, bias) if part is not None]
        if groups is not None:
            *parts, kind = pack_groups(groups)
            packed = [None if part is None else products.memory.held(part) for part in parts]
            scale, offsets, zeros, factors = map(_address, packed)
            size = self.inputs // groups.num_groups
            self.native.set_groups(size, scale, offsets, zeros, kind, factors)
            self._tensors += [part for part in packed if part is not None]

    @classmethod
    def from_floats(cls, products: Products, weight: Tensor, bias: Tensor | None) -> PackedWeight:
        """A weight of a type in ``FLOAT_FORMATS``."""
        outputs, inputs = weight.shape
        form = FLOAT_FORMATS[weight.dtype]
        return cls(
            products, form, (outputs, inputs), pack_floats(weight, products.memory.zeros), bias
        )

    @classmethod
    def from_int8(
        cls,
        products: Products,
        codes: Tensor,
        scales: Tensor,
        bias: Tensor | None,
        rounds_rows: bool,
    ) -> PackedWeight:
        """(codes - 128) * scales: codes [out, in] uint8, scales [out].

        ``rounds_rows``: x is rounded as well, each row to its own scale times -127 to 127, or
        each group's inputs of a row where there are groups.
        """
        outputs, inputs = codes.shape
        return cls(
            products,
            Format.int8,
            (outputs, inputs),
            pack_codes(codes, Format.int8, products.memory.zeros),
            bias,
            panel_values(scales.float()),
            rounds_rows=rounds_rows,
        )

    @classmethod
    def from_groups(
        cls,
        products: Products,
        form: Format,
        codes: Tensor,
        groups: Groups,
        bias: Tensor | None,
        rounds_rows: bool = False,
        smoothing: Tensor | None = None,
        spreads_rows: bool = False,
    ) -> PackedWeight:
        """codes [out, in] uint8 from 0 on, in any format of groups, and what they mean.

        Groups are runs of inputs, a multiple of ``form.inputs_per_unit`` and all of one length.
        ``rounds_rows`` as for ``from_int8``: of integers. ``smoothing`` [in]: by what x is
        multiplied before it is rounded. ``spreads_rows``: then each run of ``SPREAD_RUN`` inputs is
        multiplied by Hadamard's matrix, as it was of the weights.
        """
        assert not rounds_rows or form is not Format.float4
        assert not spreads_rows or codes.shape[1] // groups.num_groups in SPREAD_GROUPS
        outputs, inputs = codes.shape
        lines = pack_codes(codes, form, products.memory.zeros)
        packed = cls(
            products, form, (outputs, inputs), lines, bias, groups=groups, rounds_rows=rounds_rows
        )
        if spreads_rows:
            packed._spread = True
            packed.native.spread_rows()
        if smoothing is not None:
            packed._smoothed, kept = True, smoothing.float().contiguous()
            packed.native.set_smoothing(kept.data_ptr())
            packed._tensors.append(kept)
        return packed

    @staticmethod
    def joined(parts: Sequence[PackedWeight]) -> PackedWeight:
        """The outputs of ``parts``, in whatever formats, side by side; the first becomes it."""
        for part, rest in reversed(list(pairwise(parts))):
            part._rest = rest
            part.outputs += rest.outputs
            part.native.append(rest.native)
        return parts[0]

    @staticmethod
    def alike(weights: Sequence[PackedWeight]) -> bool:
        """Whether one product of several weights can have all of them."""
        kinds = {(weight._kind, weight._spread) for weight in weights}
        alone = any(weight._rest or weight._smoothed for weight in weights)
        return len(kinds) == 1 and not alone

    @property
    def nbytes(self) -> int:
        """Memory held."""
        own = sum(part.nbytes for part in self._tensors)
        return own + (0 if self._rest is None else self._rest.nbytes)

    def __call__(self, x: Tensor) -> Tensor:
        """x [rows, in] of a type in ``DTYPES`` -> [rows, out] in that type."""
        return self._product(x, x.dtype)

    def floats(self, x: Tensor) -> Tensor:
        """The same in float32, as it was summed."""
        return self._product(x, torch.float32)

    def rows(self, outputs: Tensor, dtype: torch.dtype) -> Tensor:
        """The weights of some outputs, ids [n] -> [n, in].

        In the weight's own type, or of integers in any of ``DTYPES``.
        """
        if self._rest is not None:
            own = self.outputs - self._rest.outputs
            held = outputs < own
            out = torch.empty((len(outputs), self.inputs), dtype=dtype)
            out[held] = self._embedded(outputs[held], dtype)
            out[~held] = self._rest.rows(outputs[~held] - own, dtype)
            return out
        return self._embedded(outputs, dtype)

    def _embedded(self, outputs: Tensor, dtype: torch.dtype) -> Tensor:
        assert self._form not in FLOAT_FORMATS.values() or self._form is FLOAT_FORMATS[dtype]
        outputs = outputs.contiguous()
        out = torch.empty((len(outputs), self.inputs), dtype=dtype)
        self._embed(self.native, outputs.data_ptr(), out.data_ptr(), DTYPES[dtype], len(outputs))
        return out

    def _product(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        if x.stride(1) != 1:
            x = x.contiguous()
        rows = len(x)
        out = x.new_empty((rows, self.outputs), dtype=dtype)
        self._multiply(
            self.native,
            x.data_ptr(),
            x.stride(0),
            DTYPES[x.dtype],
            out.data_ptr(),
            DTYPES[dtype],
            rows,
            torch.get_num_threads(),
        )
        return out


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
