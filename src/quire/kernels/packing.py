"""Weights in the order in which the C++ products read them (csrc/products/products.hpp).

Outputs come in panels of 16; a panel is lines of 16 lanes of four bytes, one lane an output. A lane
holds one input in float32, two in 16 bits, four in int8 or eight in int4; int5 and int6 have their
high bits in lines of their own. The number of panels is even, and what is left of the last one is
zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor

PANEL = 16
_AT_ONCE = 1024  # outputs whose codes are put into lanes, which takes several times their bytes


class Format(Enum):
    """How a weight is stored; the values are ``Format`` in C++.

    int8 has a scale for each output; other integers, and float4, have groups of inputs
    (``Groups``). Codes of float4 stand for ``FLOAT4``, which are twice the numbers of E2M1 (OCP's
    microscaling formats): whole.
    """

    float32 = 0
    bfloat16 = 1
    int8 = 2
    int4 = 3
    float16 = 4
    grouped_int8 = 5
    int5 = 6
    int6 = 7
    float4 = 8

    @property
    def bits(self) -> int:
        """Bits of a weight."""
        return (32, 16, 8, 4, 16, 8, 5, 6, 4)[int(self.value)]

    @property
    def inputs_per_unit(self) -> int:
        """Inputs that a group must have a multiple of."""
        return {5: 32, 6: 16}.get(self.bits, 32 // self.bits)


SPREAD_RUN = 16
"""Inputs that are spread together."""
SPREAD_GROUPS = (16, 32, 64)
"""Inputs of groups of which rows can be spread."""

FLOAT4 = tuple(sign * size for sign in (1.0, -1.0) for size in (0, 1, 2, 3, 4, 6, 8, 12))


class Groups(NamedTuple):
    """How codes [out, in] from 0 on become weights, by groups of inputs.

    (code - zero) * scale + offset, all kept in float16. With factors there is one scale and one
    offset for several groups, each of which multiplies them by two factors: 8 groups and factors
    below 64 where there are offsets, or 16 groups.
    """

    scales: Tensor  # [out, groups], with factors [out, groups / 8 or 16]
    zeros: Tensor | None = None  # [out, groups] uint8; None: 0 with offsets, else half of all codes
    offsets: Tensor | None = None  # as scales
    factors: Tensor | None = None  # [out, groups] int8
    offset_factors: Tensor | None = None  # [out, groups] int8, where there are offsets

    @property
    def num_groups(self) -> int:
        """Groups of one output."""
        return (self.scales if self.factors is None else self.factors).shape[1]


class PackedGroups(NamedTuple):
    """``Groups`` by panels; the kind of the factors is ``Factors`` in C++."""

    scales: Tensor
    offsets: Tensor | None
    zeros: Tensor | None
    factors: Tensor | None
    factors_kind: int


Allocate = Callable[[tuple[int, ...]], Tensor]  # an int32 tensor of that shape


def _allocate(shape: tuple[int, ...]) -> Tensor:
    return torch.empty(shape, dtype=torch.int32)


FLOAT_FORMATS = {
    torch.float32: Format.float32,
    torch.bfloat16: Format.bfloat16,
    torch.float16: Format.float16,
}


def num_panels(outputs: int) -> int:
    """Panels of this many outputs."""
    return -(-outputs // (2 * PANEL)) * 2


def pack_floats(weight: Tensor, allocate: Allocate = _allocate) -> Tensor:
    """weight [out, in] of a type in ``FLOAT_FORMATS`` -> lines [panels, lines, 16] int32."""
    outputs, inputs = weight.shape
    if inputs % FLOAT_FORMATS[weight.dtype].inputs_per_unit:
        weight = torch.nn.functional.pad(weight, (0, 1))
    return _to_panels(weight.contiguous().view(torch.int32), outputs, 0, allocate)


def pack_codes(codes: Tensor, form: Format, allocate: Allocate = _allocate) -> Tensor:
    """codes [out, in] uint8 from 0 on -> lines [panels, lines, 16] int32.

    Of int8, ``in`` is any number; of others a multiple of ``inputs_per_unit``.
    """
    lanes = torch.cat([_lanes(part, form) for part in torch.split(codes, _AT_ONCE)])
    fill = 0x80808080 if form.bits == 8 else 0x88888888
    return _to_panels(lanes, len(codes), 0 if form is Format.float4 else fill - (1 << 32), allocate)


def _lanes(codes: Tensor, form: Format) -> Tensor:
    """codes [out, in] -> [out, lines] int32."""
    outputs, inputs = codes.shape
    if form.bits == 8:
        codes = torch.nn.functional.pad(codes, (0, -inputs % 4), value=128)
        words = codes.contiguous().view(torch.int32)  # four codes each
        return (words & ~0xFFFF00) | (words & 0xFF00) << 8 | (words >> 8 & 0xFF00)
    words = (codes & 15).contiguous().view(torch.int32)
    halves = (words & 0xFF) | (words & 0xFF00) << 8 | words >> 12 & 0xF0 | words >> 4 & 0xF00000
    lanes = halves[:, ::2] | halves[:, 1::2] << 8
    if form.bits == 4:
        return lanes
    size = form.inputs_per_unit
    low = lanes.view(outputs, inputs // size, size // 8)
    return torch.cat([low, _high_bits(codes >> 4, form)], dim=2).flatten(1)


def _high_bits(codes: Tensor, form: Format) -> Tensor:
    """[out, in] below 2 or 4 -> [out, units, 1] int32, each half those of every other input."""
    pairs = codes.view(len(codes), -1, form.inputs_per_unit // 2, 2)
    lanes = torch.zeros(pairs.shape[:2], dtype=torch.int32)
    for i in range(pairs.shape[2]):
        for half in range(2):
            lanes |= pairs[:, :, i, half].int() << ((form.bits - 4) * i + 16 * half)
    return lanes[..., None]


def pack_groups(groups: Groups) -> PackedGroups:
    """Groups by panels."""
    scales, zeros, offsets, factors, offset_factors = groups
    kind, packed = 0, None
    if factors is not None:
        kind, packed = 1, factors
        if offset_factors is not None:
            kind = 2 if factors.shape[1] == 8 * scales.shape[1] else 1
            both = torch.stack([factors, offset_factors], dim=2)
            packed = _sixes(both) if kind == 2 else both
    return PackedGroups(
        panel_values(scales.half()),
        None if offsets is None else panel_values(offsets.half()),
        None if zeros is None else panel_values(zeros),
        None if packed is None else panel_values(packed),
        kind,
    )


def _sixes(factors: Tensor) -> Tensor:
    """[out, groups, 2] below 64 -> [out, groups / 8, 3] int32."""
    pairs = factors.int().view(len(factors), -1, 8, 2)
    lines = torch.zeros((*pairs.shape[:2], 3), dtype=torch.int32)
    for group in range(8):
        scale, offset = pairs[:, :, group].unbind(2)
        lines[..., 0] |= (scale & 15) << 4 * group
        lines[..., 1] |= (offset & 15) << 4 * group
        lines[..., 2] |= scale >> 4 << 2 * group | offset >> 4 << 16 + 2 * group
    return lines


def _to_panels(lanes: Tensor, outputs: int, fill: int, allocate: Allocate) -> Tensor:
    """lanes [out, lines] int32 -> [panels, lines, 16]."""
    panels, lines = num_panels(outputs), lanes.shape[1]
    packed = allocate((panels, lines, PANEL))
    whole = outputs // PANEL
    packed[:whole] = lanes[: whole * PANEL].view(whole, PANEL, lines).transpose(1, 2)
    if whole < panels:
        packed[whole:] = fill
        rest = lanes[whole * PANEL :].T
        packed[whole, :, : rest.shape[1]] = rest
    return packed


def panel_values(values: Tensor, fill: float = 0) -> Tensor:
    """values [out, ...] of each output -> [panels, ..., 16]."""
    padding = num_panels(len(values)) * PANEL - len(values)
    padded = torch.cat([values, values.new_full((padding, *values.shape[1:]), fill)])
    return padded.view(-1, PANEL, *values.shape[1:]).movedim(1, -1).contiguous()
