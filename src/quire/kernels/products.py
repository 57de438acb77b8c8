"""Matrix products in C++ (csrc/products.cpp), with weights that are packed once."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.kernels.huge_pages import HugePages
from quire.kernels.packing import (
    FLOAT_FORMATS,
    Format,
    pack_codes,
    pack_floats,
    panel_values,
)

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""Of x and the result, by their codes in C++."""


class Products:
    """The C++ products of one instruction set, by default the best that the machine has.

    Results do not depend on how many rows are multiplied at once, beyond the rounding of sums.
    For one thread at a time.
    """

    def __init__(self, instruction_set: str = "") -> None:
        """ImportError if there is no C++, ValueError if the machine lacks the instruction set."""
        from quire.kernels import _native

        self.native = _native.Products(instruction_set)
        self.describe = _native.Packed.make
        self.memory = HugePages()

    @property
    def workspace_bytes(self) -> int:
        """Memory held for rows as they are multiplied."""
        return self.native.workspace_bytes


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
        zeros: Tensor | None = None,
        group: int = 0,
        rounds_rows: bool = False,
    ) -> None:
        """See ``from_floats``, ``from_int8`` and ``from_int4``."""
        self.outputs, self.inputs = shape
        self._form = form
        self._lines, self._scales, self._zeros = lines, scales, zeros
        self._bias = None if bias is None else bias.float().contiguous()
        self._multiply, self._embed = products.native.multiply, products.native.embed
        self.native = products.describe(
            form.value,
            rounds_rows,
            self.inputs,
            self.outputs,
            lines.data_ptr(),
            _address(scales),
            _address(zeros),
            group,
            _address(self._bias),
        )

    @classmethod
    def from_floats(cls, products: Products, weight: Tensor, bias: Tensor | None) -> PackedWeight:
        """Of a type in ``FLOAT_FORMATS``."""
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

        ``rounds_rows``: x is rounded as well, each row to its own scale times -127 to 127.
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
    def from_int4(
        cls,
        products: Products,
        codes: Tensor,
        scales: Tensor,
        zeros: Tensor | None,
        bias: Tensor | None,
    ) -> PackedWeight:
        """(codes - zeros) * scales: codes [out, in] uint8 of 0 to 15.

        scales [out, groups] are kept in float16; zeros [out, groups] uint8, None for 8. Groups are
        runs of inputs, a multiple of 8 and all of one length.
        """
        outputs, inputs = codes.shape
        return cls(
            products,
            Format.int4,
            (outputs, inputs),
            pack_codes(codes, Format.int4, products.memory.zeros),
            bias,
            panel_values(scales.half()),
            None if zeros is None else panel_values(zeros),
            inputs // scales.shape[1],
        )

    @property
    def nbytes(self) -> int:
        """Memory held."""
        parts = (self._lines, self._scales, self._zeros, self._bias)
        return sum(part.nbytes for part in parts if part is not None)

    def __call__(self, x: Tensor) -> Tensor:
        """x [rows, in] of a type in ``DTYPES`` -> [rows, out] in that type."""
        return self._product(x, x.dtype)

    def floats(self, x: Tensor) -> Tensor:
        """The same in float32, as it was summed."""
        return self._product(x, torch.float32)

    def rows(self, outputs: Tensor, dtype: torch.dtype) -> Tensor:
        """The weights of some outputs, ids [n] -> [n, in], not of int4.

        In the weight's own type, or of int8 in any of ``DTYPES``.
        """
        assert self._form is Format.int8 or self._form is FLOAT_FORMATS[dtype]
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
