"""Weights that come rounded, in the forms that the C++ products multiply as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quire.kernels.packing import Format


@dataclass(frozen=True)
class ByOutputs:
    """(codes - 128) * scales, an output to a scale."""

    codes: Tensor  # [out, in] uint8
    scales: Tensor  # [out] float32
    rounds_rows: bool = False  # x is rounded to int8 as it is multiplied

    def floats(self, dtype: torch.dtype) -> Tensor:
        """The weight [out, in]."""
        return ((self.codes.float() - 128) * self.scales[:, None]).to(dtype)


@dataclass(frozen=True)
class ByGroups:
    """codes * scales + offsets or (codes - zeros) * scales, by groups of inputs."""

    form: Format
    codes: Tensor  # [out, in] uint8, from 0 on
    scales: Tensor  # [out, groups]
    zeros: Tensor | None = None  # [out, groups] uint8; None: half of all codes
    offsets: Tensor | None = None  # [out, groups]; then there are no zeros
    order: Tensor | None = None  # [in] int64: which inputs the columns are; None: as they come

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return self.codes.shape[1] // self.scales.shape[1]

    @property
    def kind(self) -> tuple[Format, int, bool, bool]:
        """What weights that become one have in common, beside the order of their inputs."""
        return self.form, self.group, self.zeros is None, self.offsets is None

    def floats(self, dtype: torch.dtype) -> Tensor:
        """The weight [out, in], its inputs in their own order."""
        outputs, groups = self.scales.shape
        codes = self.codes.view(outputs, groups, -1).float()
        if self.offsets is None:
            half = 1 << (self.form.bits - 1)
            codes -= half if self.zeros is None else self.zeros[..., None].float()
        values = codes * self.scales[..., None].float()
        if self.offsets is not None:
            values += self.offsets[..., None].float()
        weight = values.view(outputs, -1).to(dtype)
        if self.order is None:
            return weight
        back = torch.empty_like(weight)
        back[:, self.order] = weight
        return back


Stored = Tensor | ByOutputs | ByGroups
"""Floats [out, in] of the model's dtype, or what they are rounded to."""


def as_alike(parts: Sequence[Stored], dtype: torch.dtype) -> list[Stored]:
    """The same, where their inputs are not in one order as floats."""
    orders = [part.order if isinstance(part, ByGroups) else None for part in parts]
    first = orders[0]
    alike = all((a is None) == (first is None) for a in orders) and all(
        a is None or first is None or torch.equal(a, first) for a in orders
    )
    if alike:
        return list(parts)
    return [
        part.floats(dtype) if isinstance(part, ByGroups) and part.order is not None else part
        for part in parts
    ]


def side_by_side(a: Stored, b: Stored) -> Stored | None:
    """The outputs of both in one weight; None where they are rounded in different ways."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.cat([a, b])
    if isinstance(a, ByOutputs) and isinstance(b, ByOutputs) and a.rounds_rows == b.rounds_rows:
        codes, scales = torch.cat([a.codes, b.codes]), torch.cat([a.scales, b.scales])
        return ByOutputs(codes, scales, a.rounds_rows)
    if isinstance(a, ByGroups) and isinstance(b, ByGroups) and a.kind == b.kind:
        return replace(
            a,
            codes=torch.cat([a.codes, b.codes]),
            scales=torch.cat([a.scales, b.scales]),
            zeros=_joined(a.zeros, b.zeros),
            offsets=_joined(a.offsets, b.offsets),
        )
    return None


def _joined(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return None if a is None or b is None else torch.cat([a, b])
