"""Weights rounded to few bits, so that they change least; nothing is known of what they multiply.

int4 takes groups of inputs to a scale and an offset each, and gives attention a bit more: its
weights are the fewer, and what they lose shows most. Steps that span a group's weights are no bad
choice, but the largest weights are few: giving some up makes all steps smaller. So narrower spans
are tried as well, each is fitted to the codes that it gives, and what errs least is kept.
"""

from __future__ import annotations

from enum import Enum

import torch
from torch import Tensor

from quire.kernels.packing import Format, Groups
from quire.model.stored import ByGroups, ByOutputs, Stored


class Quantization(Enum):
    """How weights are rounded; the values are ``quantization`` in the engine's config.

    int8: each output's weights to one scale. int4: groups of inputs to a scale and an offset each.
    w8a8: as int8, and each row of activations to int8 as well, as it is multiplied.
    """

    int8 = "int8"
    int4 = "int4"
    w8a8 = "w8a8"


GROUP = 32  # inputs that share a scale and an offset in int4
_SPANS = (1.0, 0.9)  # of a group's weights, those that are tried
_FITS = 1  # times that a span is fitted to its codes
_SMALLEST, _LARGEST = 2.0**-24, 65504.0  # of float16
_AT_ONCE = 1 << 12  # groups, which stay in a core's own cache


def round_weight(weight: Tensor, quantization: Quantization, attention: bool = False) -> Stored:
    """weight [out, in] rounded; to int8 where int4's groups do not divide its inputs.

    attention: it is one of attention's.
    """
    if quantization is Quantization.int4 and weight.shape[1] % GROUP == 0:
        return round_groups(weight, Format.int5 if attention else Format.int4)
    return round_outputs(weight, quantization is Quantization.w8a8)


def round_outputs(weight: Tensor, rounds_rows: bool = False) -> ByOutputs:
    """weight [out, in] by outputs, whose largest weight becomes -127 or 127."""
    largest = torch.maximum(weight.amax(dim=1), -weight.amin(dim=1))
    scales = largest.float() / 127
    codes = (weight / scales.masked_fill(scales == 0, 1)[:, None]).round_().add_(128)
    return ByOutputs(codes.to(torch.uint8), scales, rounds_rows)


def round_groups(weight: Tensor, form: Format) -> ByGroups:
    """weight [out, in] by groups of inputs."""
    steps = (1 << form.bits) - 1
    outputs, inputs = weight.shape
    groups = weight.reshape(-1, GROUP)
    codes = torch.empty(groups.shape, dtype=torch.uint8)
    scales, offsets = torch.empty((2, len(groups)), dtype=torch.float16)
    for first in range(0, len(groups), _AT_ONCE):
        some = slice(first, first + _AT_ONCE)
        columns = groups[some].T.float().contiguous()  # sums over groups are sums of rows then
        scale, offset = _least_error(columns, steps)
        codes[some] = _codes(columns, scale, offset, steps).to(torch.uint8).T
        scales[some], offsets[some] = scale, offset
    shape = (outputs, inputs // GROUP)
    return ByGroups(
        form,
        codes.view(weight.shape),
        Groups(scales.view(shape), offsets=offsets.view(shape)),
    )


def _codes(groups: Tensor, scale: Tensor, offset: Tensor, steps: int) -> Tensor:
    """groups [GROUP, n] -> 0 to ``steps``, as floats."""
    return (groups - offset).mul_(1 / scale).round_().clamp_(0, steps)


def _least_error(groups: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """groups [GROUP, n] -> scales and offsets [n], whole numbers of float16."""
    mean = groups.mean(dim=0)
    low, high = torch.aminmax(groups, dim=0)
    least = torch.full_like(mean, torch.inf)
    best = (torch.ones_like(mean), low)
    for span in _SPANS:
        scale = (high - low) * (span / steps)
        offset = (high + low - (high - low) * span) / 2
        for fit in range(_FITS + 1):
            scale, offset = _as_float16(scale, offset)
            codes = _codes(groups, scale, offset, steps)
            error = torch.addcmul(offset, codes, scale).sub_(groups).square_().sum(dim=0)
            better = error < least
            least = torch.where(better, error, least)
            best = (torch.where(better, scale, best[0]), torch.where(better, offset, best[1]))
            if fit < _FITS:
                scale, offset = _fitted(groups, mean, codes)
    return best


def _fitted(groups: Tensor, mean: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """The scales and offsets of least squares for these codes."""
    middle = codes.mean(dim=0)
    spread = codes.square().mean(dim=0) - middle * middle
    scale = ((codes * groups).mean(dim=0) - middle * mean) / spread.clamp_min(1e-6)
    return scale, mean - scale * middle


def _as_float16(scale: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """As they are kept; a scale is never zero."""
    kept = scale.clamp(_SMALLEST, _LARGEST).half().float()
    return kept, offset.clamp(-_LARGEST, _LARGEST).half().float()
