"""Blocks of GGUF's rounded types as codes and what they mean, losing nothing.

A row [in] is stored as blocks of bytes. How each is laid out: ggml-quants.c of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from quire.kernels.packing import Format, Groups
from quire.models.gguf import TensorType
from quire.models.gguf_tensors.grids import GRIDS, read_grid
from quire.models.stored import ByGroups, powers_of_two

# Of IQ4_NL, by code.
_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def read_blocks(kind: TensorType, rows: Tensor) -> ByGroups:
    """rows [out, bytes] uint8 of a rounded type."""
    blocks = rows.view(len(rows), -1, kind.num_bytes)
    if kind.name in GRIDS:
        return ByGroups(GRIDS[kind.name].form, *read_grid(kind.name, blocks))
    form, read = _KINDS[kind.name]
    codes, groups = read(blocks)
    return ByGroups(form, codes.reshape(len(rows), -1), groups)


_Read = tuple[Tensor, Groups]  # of blocks [out, blocks, bytes]: codes, as they come


def _half(blocks: Tensor, at: int) -> Tensor:
    """The float16 from byte ``at`` on: [out, blocks]."""
    return blocks[..., at : at + 2].contiguous().view(torch.float16)[..., 0]


def _nibbles(codes: Tensor) -> Tensor:
    """[..., n] -> [..., 2 n]: all low ones, then all high ones."""
    return torch.cat([codes & 15, codes >> 4], dim=-1)


def _bits(codes: Tensor, size: int, count: int) -> Tensor:
    """[..., n] -> [..., count, n]: the lowest ``size`` bits of all, then the next ones."""
    shifts = torch.arange(0, size * count, size, dtype=torch.uint8)
    return codes[..., None, :] >> shifts[:, None] & ((1 << size) - 1)


def _runs(codes: Tensor, size: int) -> Tensor:
    """[..., n] -> [..., n / size, size]."""
    return codes.reshape(*codes.shape[:-1], -1, size)


def _flat(groups: Tensor) -> Tensor:
    """[out, blocks, n] -> [out, groups]."""
    return groups.flatten(1)


def _nibble_pairs(codes: Tensor) -> Tensor:
    """[..., n] -> [..., 2 n]: of each byte the low one, then the high one."""
    return torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2)


def _twice(factors: Tensor) -> Tensor:
    """Factors of 32 inputs as those of 16."""
    return factors.repeat_interleave(2, dim=-1)


def _q4_0(blocks: Tensor) -> _Read:
    return _nibbles(blocks[..., 2:]), Groups(_half(blocks, 0))


def _q4_1(blocks: Tensor) -> _Read:
    return _nibbles(blocks[..., 4:]), Groups(_half(blocks, 0), offsets=_half(blocks, 2))


def _fifth_bits(four: Tensor) -> Tensor:
    """[out, blocks, 4] -> [out, blocks, 32], in place."""
    return _bits(four, 1, 8).transpose(-1, -2).flatten(-2) << 4


def _q5_0(blocks: Tensor) -> _Read:
    codes = _nibbles(blocks[..., 6:]) | _fifth_bits(blocks[..., 2:6])
    return codes, Groups(_half(blocks, 0))


def _q5_1(blocks: Tensor) -> _Read:
    codes = _nibbles(blocks[..., 8:]) | _fifth_bits(blocks[..., 4:8])
    return codes, Groups(_half(blocks, 0), offsets=_half(blocks, 2))


def _q8_0(blocks: Tensor) -> _Read:
    return blocks[..., 2:] ^ 128, Groups(_half(blocks, 0))


def _iq4_nl(blocks: Tensor) -> _Read:
    levels = torch.tensor(_LEVELS, dtype=torch.int16).add(128).to(torch.uint8)
    return levels[_nibbles(blocks[..., 2:]).int()], Groups(_half(blocks, 0))


def _iq4_xs(blocks: Tensor) -> _Read:
    low = _nibble_pairs(blocks[..., 4:8])
    high = _bits(blocks[..., 2:4], 2, 4).transpose(-1, -2).flatten(-2)
    factors = (low | high << 4).to(torch.int8) - 32
    levels = torch.tensor(_LEVELS, dtype=torch.int16).add(128).to(torch.uint8)
    codes = levels[_nibbles(_runs(blocks[..., 8:], 16)).int()]
    return codes, Groups(_half(blocks, 0), factors=_flat(_twice(factors)))


def _tq1_0(blocks: Tensor) -> _Read:
    """Numbers to the base of 3, the uppermost digit of a byte's fraction first."""
    runs = ((0, 32, 5), (32, 48, 5), (48, 52, 4))
    powers = torch.tensor([1, 3, 9, 27, 81], dtype=torch.uint8)
    digits = [
        (blocks[..., None, first:last] * powers[:count, None]).flatten(-2)
        for first, last, count in runs
    ]
    return (torch.cat(digits, -1).int() * 3 >> 8).to(torch.uint8) + 7, Groups(_half(blocks, 52))


def _tq2_0(blocks: Tensor) -> _Read:
    return _bits(_runs(blocks[..., :64], 32), 2, 4) + 7, Groups(_half(blocks, 64))


def _mxfp4(blocks: Tensor) -> _Read:
    # A power of two; codes of the format stand for twice their numbers.
    return _nibbles(blocks[..., 1:]), Groups(powers_of_two(blocks[..., 0].int() - 128))


def _q2_k(blocks: Tensor) -> _Read:
    factors = blocks[..., :16]
    return _bits(_runs(blocks[..., 16:80], 32), 2, 4), Groups(
        _half(blocks, 80),
        offsets=-_half(blocks, 82),
        factors=_flat(factors & 15).to(torch.int8),
        offset_factors=_flat(factors >> 4).to(torch.int8),
    )


def _q3_k(blocks: Tensor) -> _Read:
    low = _bits(_runs(blocks[..., 32:96], 32), 2, 4).flatten(-3, -2)
    high = _bits(blocks[..., :32], 1, 8)
    scales = blocks[..., 96:108]
    fours = _bits(scales[..., :8], 4, 2).flatten(-2)
    twos = _bits(scales[..., 8:], 2, 4).flatten(-2)
    factors = (fours | twos << 4).to(torch.int8) - 32
    return low + 4 * high + 4, Groups(_half(blocks, 108), factors=_flat(factors))


def _sixes(scales: Tensor) -> tuple[Tensor, Tensor]:
    """The factors of Q4_K and Q5_K, [out, blocks, 12] -> two of [out, groups]."""
    first, second, rest = scales[..., :4], scales[..., 4:8], scales[..., 8:]
    of_scales = torch.cat([first & 63, rest & 15 | first >> 2 & 48], dim=-1)
    of_offsets = torch.cat([second & 63, rest >> 4 | second >> 2 & 48], dim=-1)
    return _flat(of_scales).to(torch.int8), _flat(of_offsets).to(torch.int8)


def _k_groups(blocks: Tensor) -> Groups:
    factors, of_offsets = _sixes(blocks[..., 4:16])
    return Groups(
        _half(blocks, 0),
        offsets=-_half(blocks, 2),
        factors=factors,
        offset_factors=of_offsets,
    )


def _q4_k(blocks: Tensor) -> _Read:
    return _bits(_runs(blocks[..., 16:], 32), 4, 2), _k_groups(blocks)


def _q5_k(blocks: Tensor) -> _Read:
    low = _bits(_runs(blocks[..., 48:], 32), 4, 2).flatten(-3, -2)
    return low | _bits(blocks[..., 16:48], 1, 8) << 4, _k_groups(blocks)


def _q6_k(blocks: Tensor) -> _Read:
    low = _bits(_runs(blocks[..., :128], 64), 4, 2).flatten(-3)
    high = _bits(_runs(blocks[..., 128:192], 32), 2, 4).flatten(-3)
    factors = blocks[..., 192:208].contiguous().view(torch.int8)
    return low | high << 4, Groups(_half(blocks, 208), factors=_flat(factors))


_KINDS: Mapping[str, tuple[Format, Callable[[Tensor], _Read]]] = {
    "Q4_0": (Format.int4, _q4_0),
    "Q4_1": (Format.int4, _q4_1),
    "Q5_0": (Format.int5, _q5_0),
    "Q5_1": (Format.int5, _q5_1),
    "Q8_0": (Format.grouped_int8, _q8_0),
    "Q2_K": (Format.int4, _q2_k),
    "Q3_K": (Format.int4, _q3_k),
    "Q4_K": (Format.int4, _q4_k),
    "Q5_K": (Format.int5, _q5_k),
    "Q6_K": (Format.int6, _q6_k),
    "MXFP4": (Format.float4, _mxfp4),
    "IQ4_NL": (Format.grouped_int8, _iq4_nl),
    "IQ4_XS": (Format.grouped_int8, _iq4_xs),
    "TQ1_0": (Format.int4, _tq1_0),
    "TQ2_0": (Format.int4, _tq2_0),
}
