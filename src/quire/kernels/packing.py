"""Weights in the order in which the C++ products read them (csrc/products.hpp).

Outputs come in panels of 16; a panel is lines of 16 lanes of four bytes, one lane an output. A lane
holds one input in float32, two in 16 bits, four in int8 or eight in int4. Panels are even in
number, and what they have beyond the weights stands for zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import torch
from torch import Tensor

PANEL = 16


class Format(Enum):
    """How a weight is stored; the values are ``Format`` in C++."""

    float32 = 0
    bfloat16 = 1
    int8 = 2
    int4 = 3
    float16 = 4

    @property
    def inputs_per_line(self) -> int:
        """Weights in a lane."""
        return 2 if self is Format.float16 else 1 << int(self.value)


Allocate = Callable[[tuple[int, ...]], Tensor]  # an int32 tensor of that shape


def _allocate(shape: tuple[int, ...]) -> Tensor:
    return torch.empty(shape, dtype=torch.int32)


FLOAT_FORMATS = {
    torch.float32: Format.float32,
    torch.bfloat16: Format.bfloat16,
    torch.float16: Format.float16,
}

# Where in a lane, in bits, the weights of a line's inputs are.
_BITS = {Format.int8: (0, 16, 8, 24), Format.int4: (0, 16, 4, 20, 8, 24, 12, 28)}


def num_panels(outputs: int) -> int:
    """Panels of so many outputs."""
    return -(-outputs // (2 * PANEL)) * 2


def pack_floats(weight: Tensor, allocate: Allocate = _allocate) -> Tensor:
    """weight [out, in] of a type in ``FLOAT_FORMATS`` -> lines [panels, lines, 16] int32."""
    outputs, inputs = weight.shape
    pad_inputs = inputs % FLOAT_FORMATS[weight.dtype].inputs_per_line
    if pad_inputs:
        weight = torch.nn.functional.pad(weight, (0, 1))
    return _to_panels(weight.contiguous().view(torch.int32), outputs, 0, allocate)


def pack_codes(codes: Tensor, form: Format, allocate: Allocate = _allocate) -> Tensor:
    """codes [out, in] uint8, of int8 plus 128 or of int4 plus 8 -> lines [panels, lines, 16] int32.

    ``in`` of int4 is a multiple of 8.
    """
    outputs, inputs = codes.shape
    per_line, zero = form.inputs_per_line, 128 if form is Format.int8 else 8
    if inputs % per_line:
        codes = torch.nn.functional.pad(codes, (0, -inputs % per_line), value=zero)
    words = codes.contiguous().view(torch.int32)  # four codes each
    if form is Format.int8:
        lanes = (words & ~0xFFFF00) | (words & 0xFF00) << 8 | (words >> 8 & 0xFF00)
    else:
        halves = (words & 0xFF) | (words & 0xFF00) << 8 | words >> 12 & 0xF0 | words >> 4 & 0xF00000
        lanes = halves[:, ::2] | halves[:, 1::2] << 8
    filled = sum(zero << place for place in _BITS[form])
    return _to_panels(lanes, outputs, filled - (filled >> 31 << 32), allocate)


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
