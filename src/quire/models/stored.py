"""Weights that come rounded, in the forms that the C++ products multiply as they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quire.kernels.packing import FLOAT4, SPREAD_RUN, Format, Groups
from quire.kernels.rounded_cache import spread
from quire.models.parts import ALL


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
    """The values of codes by groups of inputs, in the form of ``Groups``."""

    form: Format
    codes: Tensor  # [out, in] uint8, from 0 on
    groups: Groups
    order: Tensor | None = None  # [in] int64: which inputs the columns are; None: as they come
    rounds_rows: bool = False  # as of ``ByOutputs``
    # [in] float32: x is multiplied by it before it is rounded, and codes are of weights without it
    smoothing: Tensor | None = None
    spreads_rows: bool = False  # x and weights without smoothing are, by runs of ``SPREAD_RUN``

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return self.codes.shape[1] // self.groups.num_groups

    @property
    def in_float16(self) -> bool:
        """Whether that is what its scales are, as kernels keep them."""
        return bool((self.groups.scales.half().float() == self.groups.scales.float()).all())

    @property
    def kind(self) -> tuple[Format, bool, bool, int, tuple[bool, ...]]:
        """The facts that weights must share to become one, except the order of their inputs."""
        parts = tuple(part is None for part in self.groups)
        return self.form, self.rounds_rows, self.spreads_rows, self.group, parts

    def floats(self, dtype: torch.dtype) -> Tensor:
        """The weight [out, in], its inputs in their own order."""
        scales, zeros, offsets, factors, offset_factors = self.groups
        groups = self.groups.num_groups
        each = groups // scales.shape[1]

        def of_groups(numbers: Tensor, factors: Tensor | None) -> Tensor:
            spread = numbers.float().repeat_interleave(each, dim=1)
            return (spread if factors is None else spread * factors)[..., None]

        codes = self.codes.view(len(self.codes), groups, -1).float()
        if self.form is Format.float4:
            codes = torch.tensor(FLOAT4)[self.codes.long()].view(codes.shape)
        elif offsets is None:
            half = 1 << (self.form.bits - 1)
            codes -= half if zeros is None else zeros[..., None].float()
        values = codes * of_groups(scales, factors)
        if offsets is not None:
            values += of_groups(offsets, offset_factors)
        whole = values.view(self.codes.shape)
        if self.spreads_rows:
            whole = spread(whole, SPREAD_RUN)
        weight = (whole if self.smoothing is None else whole * self.smoothing).to(dtype)
        if self.order is None:
            return weight
        back = torch.empty_like(weight)
        back[:, self.order] = weight
        return back


Stored = Tensor | ByOutputs | ByGroups
"""Floats [out, in] of the model's dtype, or what they are rounded to."""


def bits_of(weight: ByOutputs | ByGroups) -> int:
    """Bits of a code."""
    return 8 if isinstance(weight, ByOutputs) else weight.form.bits


def rounding_rows(weight: ByOutputs | ByGroups) -> ByOutputs | ByGroups:
    """The same weight for rows that are rounded, where those can be multiplied by its codes."""
    if isinstance(weight, ByGroups) and weight.form is Format.float4:
        return weight
    return replace(weight, rounds_rows=True)


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
        if not _alike(a.smoothing, b.smoothing):
            return None
        parts = zip(a.groups._fields, a.groups, b.groups, strict=True)
        kept = {
            name: torch.cat([one, other])
            for name, one, other in parts
            if one is not None and other is not None
        }
        return replace(a, codes=torch.cat([a.codes, b.codes]), groups=a.groups._replace(**kept))
    return None


def _alike(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and torch.equal(a, b))


def in_columns(weight: Stored, columns: slice, dtype: torch.dtype) -> Stored:
    """The same numbers for these inputs only.

    If they do not divide groups as kernels need them, they become floats of ``dtype``.
    """
    if columns is ALL:
        return weight
    if isinstance(weight, Tensor):
        return weight[:, columns]
    if isinstance(weight, ByOutputs):
        return replace(weight, codes=weight.codes[:, columns])
    groups = None
    if weight.order is None:
        unit = SPREAD_RUN if weight.spreads_rows else weight.form.inputs_per_unit
        groups = _finer(weight.groups, weight.group, columns, unit)
    if groups is None:
        return weight.floats(dtype)[:, columns]
    codes = weight.codes[:, columns].contiguous()
    smoothing = None if weight.smoothing is None else weight.smoothing[columns]
    return replace(weight, codes=codes, groups=groups, smoothing=smoothing)


def _finer(groups: Groups, size: int, columns: slice, unit: int) -> Groups | None:
    """Groups of ``columns``, as large as these allow within groups of ``size`` inputs.

    None if they would not be a multiple of ``unit``.
    """
    several = groups.num_groups // groups.scales.shape[1]  # groups to a scale
    run = math.gcd(several * size, columns.start, columns.stop)  # inputs to one of ours
    if run % (several * unit) or size % (run // several):
        return None
    each = torch.arange(columns.start, columns.stop, run // several) // size
    scale = torch.arange(columns.start, columns.stop, run) // (several * size)
    whole = {"scales": scale, "offsets": scale}
    parts = zip(groups._fields, groups, strict=True)
    kept = {name: part[:, whole.get(name, each)] for name, part in parts if part is not None}
    return groups._replace(**kept)


def powers_of_two(exponents: Tensor) -> Tensor:
    """float32, exactly."""
    return torch.ldexp(torch.ones(exponents.shape), exponents)
