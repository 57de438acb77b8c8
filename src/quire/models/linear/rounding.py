"""Weights rounded to few bits, so that what they give changes least.

Groups of inputs have a scale each, and so have the same groups of activations where those are
rounded too: what a trained model's outliers make large is rounded coarsely beside them alone.

By int4's scale a group's largest weight becomes the lowest code. That is no bad choice, but few
weights are as large: to cut them makes all steps smaller. So a narrower span is tried as well, both
are fitted to the codes that they give, and what errs least is kept. An error counts as much as the
input that it multiplies, where that is known.

Forms of 4 bits spend more where a bit saves most of the loss (``bits_for``).

Where activations are rounded too, an input that is large makes those of its group coarse, and one
whose weights are large makes those coarse. So each is multiplied by what makes both alike, and its
weights are divided by it (SmoothQuant, Xiao et al., 2023). By powers of two, which round nothing.
Then both are spread: short runs of inputs are multiplied by Hadamard's matrix (QuaRot, Ashkboos et
al., 2024), so that a single large one, as it comes with some tokens, is a little of each.
Not for weights of 4 to 6 bits, whose own rounding is most of what is lost.
"""

from __future__ import annotations

import re
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor

from quire.kernels.packing import SPREAD_RUN, Format, Groups
from quire.kernels.rounded_cache import spread
from quire.models.parts import ALL, outward
from quire.models.shape import MOST_BITS, least_bits
from quire.models.stored import ByGroups, ByOutputs, Stored


class Quantization(Enum):
    """How weights are rounded; the values are ``quantization`` in the engine's config.

    w8a8, w4a8: as int8 or int4, and activations to int8 as well, as they are multiplied.
    """

    int8 = "int8"
    int4 = "int4"
    w8a8 = "w8a8"
    w4a8 = "w4a8"

    @property
    def has_4_bits(self) -> bool:
        """Whether that is what most weights have."""
        return self in (Quantization.int4, Quantization.w4a8)

    @property
    def most_bits(self) -> int:
        """The most bits of codes that stay as they are where they were rounded before."""
        return MOST_BITS if self.has_4_bits else 8

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return GROUP if self.has_4_bits else GROUP_OF_BYTES

    @property
    def rounds_rows(self) -> bool:
        """Whether activations are rounded too."""
        return self in (Quantization.w8a8, Quantization.w4a8)


class Multiplied(NamedTuple):
    """What was seen of a product's inputs: powers of two, so orders of additions seldom show."""

    importance: Tensor  # [in] float32, above 0: mean squares of each beside the largest
    smoothing: Tensor  # [in] float32: by what it becomes as large as its weights divided by it

    @classmethod
    def of(cls, inputs: Tensor, weights: Tensor) -> Multiplied:
        """inputs, weights [in] float32: mean squares of each input, and of its weights."""
        ends = inputs.max(), weights.max()
        if not all(0 < end < torch.inf for end in ends):  # nor is NaN
            return cls(torch.ones_like(inputs), torch.ones_like(inputs))
        seen, held = (
            squares.clamp_min(_LEAST * end)
            for squares, end in zip((inputs, weights), ends, strict=True)
        )
        both = seen / ends[0], (held / seen) ** 0.25
        return cls(*(torch.exp2(numbers.log2().round()) for numbers in both))


GROUP = 32  # inputs that share a scale
GROUP_OF_BYTES = 64  # in 8 bits
_SPANS = (1.0, 0.9)  # of a group's weights, those that are tried for 4 to 6 bits
_FITS = 1  # times that a span is fitted to its codes
_SMALLEST = 2.0**-24  # of float16
_LEAST = 2.0**-16  # of the largest: importance of an input, and mean squares of its weights
_FORMS = {form.bits: form for form in (Format.int4, Format.int5, Format.int6)}
_KEYS_AND_DOWN = re.compile(r"\b(k_proj|down_proj|w2|fc2|dense_4h_to_h)\b")
_QUERIES_AND_OUTPUTS = re.compile(r"\bself_(attn|attention)\.(q_proj|o_proj|out_proj|dense)$")
_AT_ONCE = 1 << 12  # groups, which stay in a core's own cache


def columns_to_round(quantization: Quantization, columns: slice, inputs: int) -> slice:
    """The columns, of this many inputs, on which the scales of ``columns`` depend."""
    group = quantization.group
    return ALL if inputs % group else outward(columns, group, inputs)


def bits_for(name: str, whole: tuple[int, int]) -> int:
    """Bits of a projection [out, in] in a form of 4 bits: what loses most for its bytes has more.

    In 4 bits, values lose thirty times as much by their bytes as gates of MLPs, keys and ``down``
    four times. What else is of attention has 6 bits, since values may be a part of it.
    """
    least = least_bits(whole)
    if _KEYS_AND_DOWN.search(name):
        return least + 1
    attention = "attn" in name or "attention" in name
    return MOST_BITS if attention and not _QUERIES_AND_OUTPUTS.search(name) else least


def round_weight(
    weight: Tensor,
    quantization: Quantization,
    bits: int = 4,
    inputs: int | None = None,
    multiplied: Multiplied | None = None,
) -> Stored:
    """weight [out, in] rounded; to int8 by outputs where groups do not divide its inputs.

    bits: where it is a form of 4 bits. inputs: of the weight that it is a part of.
    multiplied: what is known of the inputs; None: all are alike.
    """
    if (inputs or weight.shape[1]) % quantization.group:
        return _round_outputs(weight, quantization.rounds_rows)
    form = _FORMS[bits] if quantization.has_4_bits else Format.grouped_int8
    importance, smoothing = (None, None) if multiplied is None else multiplied
    if form.bits < 8 or not quantization.rounds_rows:
        return round_groups(weight, form, quantization.rounds_rows, importance)
    smoothed = weight.float() if smoothing is None else weight.float() / smoothing
    found = round_groups(spread(smoothed, SPREAD_RUN), form, rounds_rows=True)
    return replace(found, smoothing=smoothing, spreads_rows=True)


def _round_outputs(weight: Tensor, rounds_rows: bool) -> ByOutputs:
    """weight [out, in] by outputs, whose largest weight becomes -127 or 127."""
    largest = torch.maximum(weight.amax(dim=1), -weight.amin(dim=1))
    scales = largest.float() / 127
    codes = (weight / scales.masked_fill(scales == 0, 1)[:, None]).round_().add_(128)
    return ByOutputs(codes.to(torch.uint8), scales, rounds_rows)


def round_groups(
    weight: Tensor, form: Format, rounds_rows: bool = False, importance: Tensor | None = None
) -> ByGroups:
    """weight [out, in] by groups of inputs. importance: see ``Multiplied``; None: all are alike."""
    half, group = 1 << (form.bits - 1), GROUP_OF_BYTES if form.bits == 8 else GROUP
    groups = weight.reshape(-1, group)
    codes = torch.empty(groups.shape, dtype=torch.uint8)
    scales = torch.empty(len(groups), dtype=torch.float16)
    for first in range(0, len(groups), _AT_ONCE):
        some = slice(first, first + _AT_ONCE)
        columns = groups[some].T.float().contiguous()  # a step is over the same input of each
        if form.bits == 8:
            scale = _widest(columns)
        else:
            scale = _least_error(columns, half, _of_groups(importance, first, columns.shape))
        codes[some] = _codes(columns, scale, half).add_(half).to(torch.uint8).T
        scales[some] = scale
    shape = (len(weight), weight.shape[1] // group)
    by_groups = Groups(scales.view(shape))
    return ByGroups(form, codes.view(weight.shape), by_groups, rounds_rows=rounds_rows)


def _codes(groups: Tensor, scale: Tensor, half: int) -> Tensor:
    """groups [group, n] -> whole numbers from -half to half - 1, as floats."""
    return (groups * (1 / scale)).round_().clamp_(-half, half - 1)


def _widest(groups: Tensor) -> Tensor:
    """groups [group, n] -> scales [n] by which the largest becomes -127 or 127."""
    low, high = torch.aminmax(groups, dim=0)
    return _as_kept(torch.maximum(-low, high) / 127)


def _of_groups(importance: Tensor | None, first: int, shape: torch.Size) -> Tensor | None:
    """[in] of a weight -> of its groups [group, n] from ``first`` on."""
    if importance is None:
        return None
    by_group = importance.view(-1, shape[0]).T
    return by_group[:, torch.arange(first, first + shape[1]) % by_group.shape[1]]


def _least_error(groups: Tensor, half: int, importance: Tensor | None) -> Tensor:
    """groups [group, n], and of as many the importance -> scales [n], which float16 holds."""
    low, high = torch.aminmax(groups, dim=0)
    lowest = torch.where(-low > high, low, high) / -half
    least, best = torch.full_like(lowest, torch.inf), _as_kept(lowest)
    for span in _SPANS:
        scale = lowest * span
        for _ in range(_FITS + 1):
            scale = _as_kept(scale)
            codes = _codes(groups, scale, half)
            errors = (codes * scale).sub_(groups).square_()
            error = _sums(errors if importance is None else errors.mul_(importance))
            better = error < least
            least, best = torch.where(better, error, least), torch.where(better, scale, best)
            counted = codes if importance is None else codes * importance
            scale = _sums(counted * groups) / _sums(codes.mul_(counted)).clamp_min(_LEAST)
    return best


def _sums(groups: Tensor) -> Tensor:
    """groups [group, n], which is overwritten -> sums [n], each by the same order of additions.

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
