"""Projections with weights in the order of the C++ products, rounded or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.kernels.packing import FLOAT_FORMATS
from quire.kernels.products import PackedWeight, Products
from quire.models.linear.base import Linear, PlainLinear
from quire.models.stored import ByGroups, ByOutputs, Stored, as_alike, side_by_side


@dataclass(frozen=True)
class Reordered:
    """A ``Linear`` whose inputs are taken in another order (GPTQ's desc_act)."""

    product: Linear
    order: Tensor  # [in] int64

    @property
    def nbytes(self) -> int:
        return self.product.nbytes + self.order.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        return self.product(x[:, self.order])

    def floats(self, x: Tensor) -> Tensor:
        return self.product.floats(x[:, self.order])

    def rows(self, outputs: Tensor, dtype: torch.dtype) -> Tensor:
        found = self.product.rows(outputs, dtype)
        return torch.empty_like(found).index_copy_(1, self.order, found)


def pack_parts(
    products: Products, parts: Sequence[Stored], biases: Sequence[Tensor | None], dtype: torch.dtype
) -> Linear:
    """One product of all parts, the outputs of each in the form that it comes in."""
    joined: list[tuple[Stored, Tensor | None]] = []
    for part, bias in zip(as_alike(parts, dtype), biases, strict=True):
        both = side_by_side(joined[-1][0], part) if joined else None
        if both is None:
            joined.append((part, bias))
        else:
            biases_of_both = [one for one in (joined[-1][1], bias) if one is not None]
            joined[-1] = (both, torch.cat(biases_of_both) if biases_of_both else None)
    if len(joined) == 1:
        return pack(products, *joined[0])
    packed = [_pack(products, part, bias) for part, bias in joined]
    return _reordered(PackedWeight.joined(packed), joined[0][0])


def pack(products: Products, weight: Stored, bias: Tensor | None) -> Linear:
    """A single one."""
    if isinstance(weight, Tensor) and weight.dtype not in FLOAT_FORMATS:
        return PlainLinear(weight, bias)
    return _reordered(_pack(products, weight, bias), weight)


def _pack(products: Products, weight: Stored, bias: Tensor | None) -> PackedWeight:
    if isinstance(weight, Tensor):
        return PackedWeight.from_floats(products, weight, bias)
    if isinstance(weight, ByOutputs):
        return PackedWeight.from_int8(
            products, weight.codes, weight.scales, bias, weight.rounds_rows
        )
    return PackedWeight.from_groups(
        products,
        weight.form,
        weight.codes,
        weight.groups,
        bias,
        weight.rounds_rows,
        weight.smoothing,
        weight.spreads_rows,
    )


def _reordered(product: PackedWeight, weight: Stored) -> Linear:
    if isinstance(weight, ByGroups) and weight.order is not None:
        return Reordered(product, weight.order)
    return product
