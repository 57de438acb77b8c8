"""A block's bytes, wherever they go: the tiles of its keys and values in layer after layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from quire.kernels.ops import LayerKV


class BlockBytes:
    """The memory of a KV group's blocks, in which nothing is looked for twice."""

    def __init__(self, layers: Sequence[LayerKV]) -> None:
        tensors = [part for layer in layers for part in layer.parts]
        self._parts = [part.view(torch.uint8).view(-1).numpy().data for part in tensors]
        self._sizes = [part[0].nbytes for part in tensors]
        self.block_bytes = sum(self._sizes)

    def of(self, block: int) -> list[memoryview]:
        """Those of one block, to be read or filled."""
        return [
            part[block * size : (block + 1) * size]
            for part, size in zip(self._parts, self._sizes, strict=True)
        ]

    def blank(self, block: int) -> None:
        """Zeros, where what should have come has not.

        Whoever relied on it is computed once more in this step, to no avail, and must not meet
        numbers that are none.
        """
        for tile in self.of(block):
            tile[:] = bytes(tile.nbytes)
