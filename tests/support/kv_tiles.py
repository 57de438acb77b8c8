"""Pools as kernels keep them, and as rows, which is what a test can read.

The C++ kernels keep the numbers of a tile (a block and a head) in the order of their products where
the tile's size allows (csrc/interface.hpp); the others keep rows [N, D].
"""

from __future__ import annotations

from torch import Tensor

from quire.kernels.cpu import CPUKernels
from quire.kernels.ops import Kernels, LayerKV

PANEL = 16


def to_tiles(kernels: Kernels, kv: LayerKV) -> LayerKV:
    """A copy of a pool of rows, as the kernels keep it."""
    if not _in_panels(kernels, kv):
        return kv._replace(keys=kv.keys.clone(), values=kv.values.clone())
    return kv._replace(keys=_panels(kv.keys), values=_pairs(kv.values))


def to_rows(kernels: Kernels, kv: LayerKV) -> LayerKV:
    """The other way round."""
    if not _in_panels(kernels, kv):
        return kv
    return kv._replace(keys=_rows_of_panels(kv.keys), values=_rows_of_pairs(kv.values))


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
