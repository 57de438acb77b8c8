"""Weights in every form in which products take them, drawn at random."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from quire.kernels.packing import FLOAT4, Format, Groups
from quire.kernels.products import PackedWeight, Products

Make = Callable[[Products, tuple[int, int]], PackedWeight]


def floats(dtype: torch.dtype) -> Make:
    """As they are."""

    def make(products: Products, shape: tuple[int, int]) -> PackedWeight:
        weight = torch.randn(shape).to(dtype)
        return PackedWeight.from_floats(products, weight, torch.randn(shape[0]))

    return make


def int8(rounds_rows: bool) -> Make:
    """With a scale for each output."""

    def make(products: Products, shape: tuple[int, int]) -> PackedWeight:
        codes, scales = torch.randint(256, shape, dtype=torch.uint8), torch.rand(shape[0]) / 100
        bias = torch.randn(shape[0])
        return PackedWeight.from_int8(products, codes, scales, bias, rounds_rows)

    return make


def groups(form: Format, shape: tuple[int, int], group: int, offsets: str) -> Groups:
    """At random. offsets: "", "zeros", "offsets", "factors", or "factors and offsets"."""
    outputs, count = shape[0], shape[1] // group
    zeros = shifts = factors = of_shifts = None
    numbers = (outputs, count)
    if "factors" in offsets:
        both = "offsets" in offsets
        numbers = (outputs, count // (8 if both and group == 32 else 16))
        factors = torch.randint(64, (outputs, count), dtype=torch.int8)
        of_shifts = torch.randint(64, (outputs, count), dtype=torch.int8) if both else None
        factors = factors if both else factors * 4 - 128
    if "zeros" in offsets:
        zeros = torch.randint(2**form.bits, numbers, dtype=torch.uint8)
    if "offsets" in offsets:
        shifts = (torch.rand(numbers) / 10).half()
    return Groups((torch.rand(numbers) / 10).half(), zeros, shifts, factors, of_shifts)


def meaning(codes: Tensor, form: Format, groups: Groups) -> Tensor:
    """The weights that they stand for, in float64."""
    scales, zeros, offsets, factors, of_offsets = groups
    count = groups.num_groups
    each = count // scales.shape[1]
    zero = torch.full((len(codes), count), 0.0 if offsets is not None else 2.0 ** (form.bits - 1))
    zero = zero if zeros is None else zeros
    scale = scales.double().repeat_interleave(each, dim=1) * (1 if factors is None else factors)
    numbers = codes.double().view(len(codes), count, -1) - zero[..., None]
    if form is Format.float4:
        numbers = torch.tensor(FLOAT4).double()[codes.long()].view(numbers.shape)
    weights = numbers * scale[..., None]
    if offsets is not None:
        offset = offsets.double().repeat_interleave(each, dim=1)
        weights += (offset * (1 if of_offsets is None else of_offsets))[..., None]
    return weights.view(codes.shape)


def grouped(
    form: Format, group: int, offsets: str = "", rounds_rows: bool = False, spreads: bool = False
) -> Make:
    """By groups of ``group`` inputs, or of all if that is 0."""

    def make(products: Products, shape: tuple[int, int]) -> PackedWeight:
        codes = torch.randint(2**form.bits, shape, dtype=torch.uint8)
        drawn, bias = groups(form, shape, group or shape[1], offsets), torch.randn(shape[0])
        return PackedWeight.from_groups(
            products, form, codes, drawn, bias, rounds_rows, spreads_rows=spreads
        )

    return make


def mixed(products: Products, shape: tuple[int, int]) -> PackedWeight:
    """Outputs in three formats, side by side."""
    forms = [FORMS[name] for name in ("int5 by groups of 32, offsets", "bfloat16", "int8")]
    sizes = [(shape[0] * i // 3, shape[0] * (i + 1) // 3) for i in range(3)]
    return PackedWeight.joined(
        [
            form(products, (end - first, shape[1]))
            for form, (first, end) in zip(forms, sizes, strict=True)
        ]
    )


FORMS: dict[str, Make] = {
    "float32": floats(torch.float32),
    "bfloat16": floats(torch.bfloat16),
    "float16": floats(torch.float16),
    "int8": int8(False),
    "w8a8": int8(True),
    "int8 by groups of 32": grouped(Format.grouped_int8, 32),
    "int4": grouped(Format.int4, 0),
    "int4 by groups of 8": grouped(Format.int4, 8),
    "int4 by groups of 32, zeros": grouped(Format.int4, 32, "zeros"),
    "int4 by groups of 40, zeros": grouped(Format.int4, 40, "zeros"),
    "int4 by groups of 16, 16 to factors and offsets": grouped(
        Format.int4, 16, "factors and offsets"
    ),
    "int4 by groups of 32, 8 to factors and offsets": grouped(
        Format.int4, 32, "factors and offsets"
    ),
    "int5 by groups of 32, offsets": grouped(Format.int5, 32, "offsets"),
    "int6 by groups of 16, 16 to factors": grouped(Format.int6, 16, "factors"),
    "int4 by groups of 40, rows rounded": grouped(Format.int4, 40, rounds_rows=True),
    "int6 by groups of 32, rows rounded": grouped(Format.int6, 32, rounds_rows=True),
    "int8 by groups of 32, rows rounded": grouped(Format.grouped_int8, 32, rounds_rows=True),
    "int8 by groups of 64, rows spread": grouped(Format.grouped_int8, 64, "", True, True),
    "int4 by groups of 32, offsets, rows rounded": grouped(Format.int4, 32, "offsets", True),
    "int5 by groups of 32, zeros, rows rounded": grouped(Format.int5, 32, "zeros", True),
    "float4 by groups of 32": grouped(Format.float4, 32),
    "mixed by groups of 32": mixed,
}


def fits(form: str, inputs: int) -> bool:
    """Whether the form's groups divide the inputs."""
    group = next((size for size in (8, 16, 32, 40, 64) if f"groups of {size}" in form), 1)
    together = next((count for count in (8, 16) if f", {count} to" in form), 1)
    return inputs % (group * together) == 0 and (inputs % 8 == 0 or "int4" not in form)
