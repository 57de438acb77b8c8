"""A block's bytes, wherever they go: the tiles of its keys and values in layer after layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quire.kernels.ops import LayerKV


def block_tiles(layers: Sequence[LayerKV], block: int) -> list[Tensor]:
    """A block's keys and values in every layer, flat."""
    return [part[block].view(-1) for layer in layers for part in layer.parts]


def buffers(tiles: Sequence[Tensor]) -> list[memoryview]:
    """Their memory, to be read or filled."""
    return [tile.view(torch.uint8).numpy().data for tile in tiles]


def blank(tiles: Sequence[Tensor]) -> None:
    """Zeros, where what should have come has not.

    Whoever relied on it is computed once more in this step, to no avail, and must not meet numbers
    that are none.
    """
    for tile in tiles:
        tile.zero_()
