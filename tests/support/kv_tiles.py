"""Pools as kernels keep them, and as rows, which is what a test can read.

The C++ kernels keep the numbers of a tile (a block and a head) in the order of their products where
the tile's size allows (csrc/interface.hpp); the others keep rows [N, D].
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from quire.kernels.cpu import CPUKernels
from quire.kernels.layer_memory import LayerKV
from quire.kernels.ops import Kernels
from quire.kernels.rounded_cache import key_codes, levels_of, spread, value_codes

PANEL = 16


def to_tiles(kernels: Kernels, kv: LayerKV) -> LayerKV:
    """A copy of a pool of rows, as the kernels keep it."""
    if not _in_panels(kernels, kv):
        return kv._replace(keys=kv.keys.clone(), values=kv.values.clone())
    return kv._replace(keys=_panels(kv.keys), values=_cells(_pairs, kv.values))


def to_rows(kernels: Kernels, kv: LayerKV) -> LayerKV:
    """The other way round."""
    if not _in_panels(kernels, kv):
        return kv
    return kv._replace(keys=_rows_of_panels(kv.keys), values=_cells(_rows_of_pairs, kv.values))


def numbers(kv: LayerKV, spreads: bool = True) -> list[Tensor]:
    """The keys and values that a pool of rows has, float64: spread back if they were spread."""
    found = []
    for pool, scales, codes in (
        (kv.keys, kv.key_scales, key_codes),
        (kv.values, kv.value_scales, value_codes),
    ):
        held = (levels_of(codes(pool)) if pool.dtype == torch.uint8 else pool).double()
        if scales is not None:
            held = held * scales.double()[..., None]
            held = spread(held) if spreads else held
        found.append(held)
    return found


def _in_panels(kernels: Kernels, kv: LayerKV) -> bool:
    _, _, tokens, dim = kv.keys.shape
    words = dim * kv.keys.itemsize % 4 == 0
    return isinstance(kernels, CPUKernels) and tokens % PANEL == 0 and words


def _panels(rows: Tensor) -> Tensor:
    """[B, Hkv, N, D] -> the same numbers as [B, Hkv, N / 16, words, 16, numbers of a word]."""
    blocks, heads, tokens, dim = rows.shape
    word = 4 // rows.itemsize
    split = rows.reshape(blocks, heads, tokens // PANEL, PANEL, dim // word, word)
    return split.transpose(3, 4).contiguous().view(rows.shape)


def _rows_of_panels(tiles: Tensor) -> Tensor:
    blocks, heads, tokens, dim = tiles.shape
    word = 4 // tiles.itemsize
    split = tiles.reshape(blocks, heads, tokens // PANEL, dim // word, PANEL, word)
    return split.transpose(3, 4).contiguous().view(tiles.shape)


def _cells(move: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """What lies side by side: of values of 4 bits two bytes of each."""
    if values.dtype != torch.uint8 or not values.numel():
        return move(values)
    return move(values.view(torch.int16)).view(torch.uint8)


def _pairs(rows: Tensor) -> Tensor:
    """[B, Hkv, N, Dv] -> the same numbers as [B, Hkv, N / 2, Dv, 2]; those of four bytes stay."""
    if rows.itemsize == 4:
        return rows.clone()
    blocks, heads, tokens, dim = rows.shape
    split = rows.reshape(blocks, heads, tokens // 2, 2, dim)
    return split.transpose(3, 4).contiguous().view(rows.shape)


def _rows_of_pairs(tiles: Tensor) -> Tensor:
    if tiles.itemsize == 4:
        return tiles
    blocks, heads, tokens, dim = tiles.shape
    split = tiles.reshape(blocks, heads, tokens // 2, dim, 2)
    return split.transpose(3, 4).contiguous().view(tiles.shape)
