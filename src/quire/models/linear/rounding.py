"""Weights rounded to few bits, so that they change least; nothing is known of what they multiply.

int4 takes groups of inputs to a scale each, by which a group's largest weight becomes the lowest
code. That is no bad choice, but few weights are as large: to cut them makes all steps smaller. So a
narrower span is tried as well, both are fitted to the codes that they give, and what errs least is
kept. Attention has 6 bits: its weights are the fewer, and what they lose shows most.
"""

from __future__ import annotations

from enum import Enum

import torch
from torch import Tensor

from quire.kernels.packing import Format, Groups
from quire.models.parts import ALL, outward
from quire.models.stored import ByGroups, ByOutputs, Stored


class Quantization(Enum):
    """How weights are rounded; the values are ``quantization`` in the engine's config.

    int8: each output's weights to one scale. int4: groups of inputs to a scale each.
    w8a8, w4a8: as int8 or int4, and each row of activations to int8 as well, as it is multiplied.
    """

    int8 = "int8"
    int4 = "int4"
    w8a8 = "w8a8"
    w4a8 = "w4a8"

    @property
    def in_groups(self) -> bool:
        """Whether weights have 4 bits, by groups of inputs."""
        return self in (Quantization.int4, Quantization.w4a8)

    @property
    def rounds_rows(self) -> bool:
        """Whether activations are rounded too."""
        return self in (Quantization.w8a8, Quantization.w4a8)


GROUP = 32  # inputs that share a scale in int4
_SPANS = (1.0, 0.9)  # of a group's weights, those that are tried
_FITS = 1  # times that a span is fitted to its codes
_SMALLEST = 2.0**-24  # of float16
_AT_ONCE = 1 << 12  # groups, which stay in a core's own cache


def columns_to_round(quantization: Quantization, columns: slice, inputs: int) -> slice:
    """The columns, of this many inputs, on which the scales of ``columns`` depend."""
    in_groups = quantization.in_groups and inputs % GROUP == 0
    return outward(columns, GROUP, inputs) if in_groups else ALL


def round_weight(
    weight: Tensor,
    quantization: Quantization,
    attention: bool = False,
    inputs: int | None = None,
) -> Stored:
    """weight [out, in] rounded; to int8 where int4's groups do not divide its inputs.

    attention: it is one of attention's. inputs: of the weight that it is a part of.
    """
    if quantization.in_groups and (inputs or weight.shape[1]) % GROUP == 0:
        form = Format.int6 if attention else Format.int4
        return round_groups(weight, form, quantization.rounds_rows)
    return round_outputs(weight, quantization.rounds_rows)


def round_outputs(weight: Tensor, rounds_rows: bool = False) -> ByOutputs:
    """weight [out, in] by outputs, whose largest weight becomes -127 or 127."""
    largest = torch.maximum(weight.amax(dim=1), -weight.amin(dim=1))
    scales = largest.float() / 127
    codes = (weight / scales.masked_fill(scales == 0, 1)[:, None]).round_().add_(128)
    return ByOutputs(codes.to(torch.uint8), scales, rounds_rows)


def round_groups(weight: Tensor, form: Format, rounds_rows: bool = False) -> ByGroups:
    """weight [out, in] by groups of inputs."""
    half = 1 << (form.bits - 1)
    groups = weight.reshape(-1, GROUP)
    codes = torch.empty(groups.shape, dtype=torch.uint8)
    scales = torch.empty(len(groups), dtype=torch.float16)
    for first in range(0, len(groups), _AT_ONCE):
        some = slice(first, first + _AT_ONCE)
        columns = groups[some].T.float().contiguous()  # a step is over the same input of each
        scale = _least_error(columns, half)
        codes[some] = _codes(columns, scale, half).add_(half).to(torch.uint8).T
        scales[some] = scale
    shape = (len(weight), weight.shape[1] // GROUP)
    by_groups = Groups(scales.view(shape))
    return ByGroups(form, codes.view(weight.shape), by_groups, rounds_rows=rounds_rows)


def _codes(groups: Tensor, scale: Tensor, half: int) -> Tensor:
    """groups [GROUP, n] -> whole numbers from -half to half - 1, as floats."""
    return (groups * (1 / scale)).round_().clamp_(-half, half - 1)


def _least_error(groups: Tensor, half: int) -> Tensor:
    """groups [GROUP, n] -> scales [n], which float16 holds."""
    low, high = torch.aminmax(groups, dim=0)
    lowest = torch.where(-low > high, low, high) / -half
    least, best = torch.full_like(lowest, torch.inf), _as_kept(lowest)
    for span in _SPANS:
        scale = lowest * span
        for _ in range(_FITS + 1):
            scale = _as_kept(scale)
            codes = _codes(groups, scale, half)
            error = _sums((codes * scale).sub_(groups).square_())
            better = error < least
            least, best = torch.where(better, error, least), torch.where(better, scale, best)
            scale = _sums(codes * groups) / _sums(codes.square_()).clamp_min(1)
    return best


def _sums(groups: Tensor) -> Tensor:
    """groups [GROUP, n], which is overwritten -> sums [n], each by the same order of additions.

    That of ``torch.sum`` hangs on n and on where a group stands, so a rank would now and then round
    its part in another way than the whole is rounded.
    """
    half = len(groups) // 2
    while half:
        groups[:half].add_(groups[half : 2 * half])
        half //= 2
    return groups[0]


def _as_kept(scale: Tensor) -> Tensor:
    """Scales as float16 keeps them, and never zero."""
    kept = scale.half().float()
    return kept.masked_fill(kept == 0, _SMALLEST)
