"""Weights in every form in which products take them, drawn at random."""

from __future__ import annotations

from collections.abc import Callable

import torch

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


def int4(group: int, with_zeros: bool) -> Make:
    """With a scale for each output and group, of ``group`` inputs, or of all if that is 0."""

    def make(products: Products, shape: tuple[int, int]) -> PackedWeight:
        outputs, inputs = shape
        codes = torch.randint(16, shape, dtype=torch.uint8)
        scales = (torch.rand(outputs, inputs // (group or inputs)) / 10).half()
        zeros = torch.randint(16, scales.shape, dtype=torch.uint8) if with_zeros else None
        return PackedWeight.from_int4(products, codes, scales, zeros, torch.randn(outputs))

    return make


FORMS: dict[str, Make] = {
    "float32": floats(torch.float32),
    "bfloat16": floats(torch.bfloat16),
    "float16": floats(torch.float16),
    "int8": int8(False),
    "w8a8": int8(True),
    "int4": int4(0, False),
    "int4 by groups of 8": int4(8, False),
    "int4 by groups of 32, zeros": int4(32, True),
    "int4 by groups of 40, zeros": int4(40, True),
}


def fits(form: str, inputs: int) -> bool:
    """Whether the form's groups divide the inputs."""
    group = next((size for size in (8, 32, 40) if f"groups of {size}" in form), 1)
    return inputs % group == 0 and (inputs % 8 == 0 or "int4" not in form)
