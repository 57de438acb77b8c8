"""Projections with weights in the order of the C++ products, rounded or not."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.kernels.products import PackedWeight, Products
from quire.model.linear.rounding import (
    GROUPS,
    Grouped,
    Quantization,
    round_groups,
    round_outputs,
)


class PackedLinear:
    """``Linear`` by C++."""

    def __init__(self, weight: PackedWeight, dtype: torch.dtype) -> None:
        """``dtype`` is the one that the model computes in."""
        self._weight, self._dtype = weight, dtype
        self.nbytes = weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """See ``Linear``."""
        return self._weight(x)

    def rows(self, outputs: Tensor) -> Tensor:
        """See ``Linear.rows``."""
        return self._weight.rows(outputs, self._dtype)

    @classmethod
    def floats(cls, products: Products, weight: Tensor, bias: Tensor | None) -> PackedLinear:
        """The weight as it is, float32 or bfloat16."""
        return cls(PackedWeight.from_floats(products, weight, bias), weight.dtype)

    @classmethod
    def grouped(
        cls, products: Products, weight: Grouped, bias: Tensor | None, dtype: torch.dtype
    ) -> PackedLinear:
        """An int4 weight that comes rounded."""
        zeros = None if bool((weight.zeros == 8).all()) else weight.zeros
        packed = PackedWeight.from_int4(products, weight.codes, weight.scales, zeros, bias)
        return cls(packed, dtype)

    @classmethod
    def rounded(
        cls,
        products: Products,
        weight: Tensor,
        bias: Tensor | None,
        quantization: Quantization,
    ) -> PackedLinear:
        """The weight rounded; to int8 where int4 has no group that divides its inputs."""
        group = next((size for size in GROUPS if weight.shape[1] % size == 0), None)
        if quantization is Quantization.int4 and group is not None:
            return cls.grouped(products, round_groups(weight, group), bias, weight.dtype)
        codes, scales = round_outputs(weight)
        rounds_rows = quantization is Quantization.w8a8
        packed = PackedWeight.from_int8(products, codes, scales, bias, rounds_rows)
        return cls(packed, weight.dtype)
