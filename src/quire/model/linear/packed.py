"""Projections with weights in the order of the C++ products, rounded or not."""

from __future__ import annotations

from torch import Tensor

from quire.kernels.packing import Format, Groups
from quire.kernels.products import PackedWeight, Products
from quire.model.linear.rounding import (
    GROUPS,
    Grouped,
    Quantization,
    round_groups,
    round_outputs,
)


def pack_grouped(products: Products, weight: Grouped, bias: Tensor | None) -> PackedWeight:
    """An int4 weight that comes rounded."""
    zeros = None if bool((weight.zeros == 8).all()) else weight.zeros
    return PackedWeight.from_groups(
        products, Format.int4, weight.codes, Groups(weight.scales, zeros), bias
    )


def pack_rounded(
    products: Products, weight: Tensor, bias: Tensor | None, quantization: Quantization
) -> PackedWeight:
    """The weight rounded; to int8 where int4 has no group that divides its inputs."""
    group = next((size for size in GROUPS if weight.shape[1] % size == 0), None)
    if quantization is Quantization.int4 and group is not None:
        return pack_grouped(products, round_groups(weight, group), bias)
    codes, scales = round_outputs(weight)
    rounds_rows = quantization is Quantization.w8a8
    return PackedWeight.from_int8(products, codes, scales, bias, rounds_rows)
