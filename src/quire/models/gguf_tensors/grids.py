"""Blocks of GGUF's smallest types: runs of numbers that are chosen together, from tables.

IQ1, IQ2 and IQ3 store which row of a table a run of four or eight numbers is. The tables are those
of the ``gguf`` package: it gives the numbers of blocks whose scale is 1, from which the factors of
groups are divided out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from quire.kernels.packing import Format, Groups

_AT_ONCE = 1 << 14  # blocks whose numbers are floats at one time: 16 MiB


class Grid(NamedTuple):
    """How a type's blocks [n, bytes] are taken apart.

    unit: the scale with which all numbers are whole, once factors are divided out.
    share: what a stored scale is multiplied by to be that of a whole number.
    """

    form: Format
    unit: float
    share: float
    scale: Callable[[Tensor], Tensor]  # [n, bytes] -> float16 [n]
    with_scale: Callable[[Tensor, float], Tensor]  # blocks with another one
    factors: Callable[[Tensor], Tensor]  # [n, bytes] -> int [n, 16], by groups of 16 numbers


def read_grid(kind: str, rows: Tensor) -> tuple[Tensor, Groups]:
    """Blocks [out, blocks, bytes] -> codes [out, in] and their groups."""
    grid = GRIDS[kind]
    blocks = rows.flatten(0, 1)
    codes = torch.cat([_codes(kind, grid, part) for part in torch.split(blocks, _AT_ONCE)])
    factors = grid.factors(blocks).to(torch.int8)
    scales = grid.scale(blocks).float() * grid.share
    return codes.view(len(rows), -1), Groups(
        scales.view(len(rows), -1), factors=factors.view(len(rows), -1)
    )


def _codes(kind: str, grid: Grid, blocks: Tensor) -> Tensor:
    """blocks [n, bytes] -> [n, 256] uint8."""
    import gguf  # the only user of it, and of a fifth of a second

    plain = grid.with_scale(blocks, grid.unit).numpy()
    numbers = torch.from_numpy(gguf.dequantize(plain, gguf.GGMLQuantizationType[kind]))
    whole = numbers.view(len(blocks), 16, 16) / grid.factors(blocks)[..., None]
    return (whole.flatten(1).to(torch.int16) + (1 << (grid.form.bits - 1))).to(torch.uint8)


def _words(blocks: Tensor, kind: torch.dtype) -> Tensor:
    return blocks.contiguous().view(kind)


def _first_half(blocks: Tensor) -> Tensor:
    return _words(blocks[:, :2], torch.float16)[:, 0]


def _with_first_half(blocks: Tensor, scale: float) -> Tensor:
    changed = blocks.clone()
    changed[:, :2] = torch.tensor([scale], dtype=torch.float16).view(torch.uint8)
    return changed


def _four_halves(blocks: Tensor) -> Tensor:
    """IQ1_M's, four bits of which are in each of the last four words."""
    words = _words(blocks[:, 48:], torch.int16).int() & 0xFFFF
    whole = words[:, 0] >> 12 | words[:, 1] >> 8 & 0xF0 | words[:, 2] >> 4 & 0xF00
    return (whole | words[:, 3] & 0xF000).to(torch.int16).view(torch.float16)


def _with_four_halves(blocks: Tensor, scale: float) -> Tensor:
    changed = blocks.clone()
    bits = int(torch.tensor(scale, dtype=torch.float16).view(torch.int16))
    for word in range(4):
        high = blocks[:, 49 + 2 * word] & 15
        changed[:, 49 + 2 * word] = high | (bits >> 4 * word & 15) << 4
    return changed


def _odd(scales: Tensor) -> Tensor:
    """Scales from 0 on as the odd numbers that they stand for, one for each of 16 groups."""
    return (2 * scales + 1).repeat_interleave(16 // scales.shape[1], dim=1)


def _nibbles(stored: Tensor) -> Tensor:
    """[n, bytes] -> [n, 2 bytes]: of each the low one, then the high one."""
    return torch.stack([stored & 15, stored >> 4], dim=-1).flatten(1)


def _iq2_xxs(blocks: Tensor) -> Tensor:
    return _odd(blocks[:, 2:].view(len(blocks), 8, 8)[:, :, 7] >> 4)


def _iq2_xs(blocks: Tensor) -> Tensor:
    return _odd(_nibbles(blocks[:, 66:]))


def _iq2_s(blocks: Tensor) -> Tensor:
    return _odd(_nibbles(blocks[:, 74:]))


def _iq3_xxs(blocks: Tensor) -> Tensor:
    return _odd(blocks[:, 66:].view(len(blocks), 8, 4)[:, :, 3] >> 4)


def _iq3_s(blocks: Tensor) -> Tensor:
    return _odd(_nibbles(blocks[:, 106:]))


def _iq1_s(blocks: Tensor) -> Tensor:
    return _odd(blocks[:, 34:].view(len(blocks), 8, 2)[:, :, 1] >> 4 & 7)


def _iq1_m(blocks: Tensor) -> Tensor:
    words = _words(blocks[:, 48:], torch.int16).int() & 0xFFFF
    return _odd((words[:, :, None] >> torch.tensor([0, 3, 6, 9]) & 7).flatten(1))


_BYTES, _SIXES = Format.grouped_int8, Format.int6
GRIDS = {
    "IQ2_XXS": Grid(_BYTES, 8, 1 / 8, _first_half, _with_first_half, _iq2_xxs),
    "IQ2_XS": Grid(_BYTES, 8, 1 / 8, _first_half, _with_first_half, _iq2_xs),
    "IQ2_S": Grid(_BYTES, 8, 1 / 8, _first_half, _with_first_half, _iq2_s),
    "IQ3_XXS": Grid(_SIXES, 2, 1 / 2, _first_half, _with_first_half, _iq3_xxs),
    "IQ3_S": Grid(_SIXES, 1, 1, _first_half, _with_first_half, _iq3_s),
    "IQ1_S": Grid(_SIXES, 8, 1 / 8, _first_half, _with_first_half, _iq1_s),
    "IQ1_M": Grid(_SIXES, 8, 1 / 8, _four_halves, _with_four_halves, _iq1_m),
}
"""By the types' names."""
