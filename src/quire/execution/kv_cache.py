"""The pool's tensors, allocated once, and the moves of whole blocks between them."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from itertools import groupby

import numpy as np
import torch

from quire.execution.swap_file import SwapFile
from quire.kernels.ops import AttentionBackend, KVShape, LayerKV
from quire.memory import BlockMove, MoveKind

logger = logging.getLogger(__name__)


def bytes_per_token(shapes: Sequence[KVShape], dtype: torch.dtype) -> int:
    """KV bytes of one token over all layers."""
    elements = sum(s.num_kv_heads * (s.key_dim + s.value_dim) for s in shapes)
    return elements * dtype.itemsize


class KVCache:
    """Keys and values of all layers, in ``num_blocks`` blocks of ``block_size`` tokens.

    ``num_host_blocks`` more are in a file in the directory ``swap_path``.
    """

    def __init__(
        self,
        shapes: Sequence[KVShape],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        attention: AttentionBackend,
        num_host_blocks: int = 0,
        swap_path: str | None = None,
    ) -> None:
        self.block_size = block_size
        self.layers = [
            LayerKV(
                _zeros((num_blocks, shape.num_kv_heads, block_size, shape.key_dim), dtype),
                _zeros((num_blocks, shape.num_kv_heads, block_size, shape.value_dim), dtype),
            )
            for shape in shapes
        ]
        self._attention = attention
        self.swap_file: SwapFile | None = None
        if num_host_blocks:
            self.swap_file = SwapFile(swap_path, num_host_blocks, self.layers)

    def move(self, moves: Sequence[BlockMove]) -> list[BlockMove]:
        """Carry out moves in their order, neighbours of one kind together; those that failed."""
        failed: list[BlockMove] = []
        for kind, run in groupby(moves, key=lambda move: move.kind):
            if kind is MoveKind.COPY:
                pairs = [(move.source, move.target) for move in run]
                for layer in self.layers:
                    self._attention.copy_blocks(layer, layer, pairs)
            else:
                failed += [move for move in run if not self._swap(move)]
        return failed

    def _swap(self, move: BlockMove) -> bool:
        if self.swap_file is None:
            raise ValueError(f"this cache has no host blocks, so it cannot {move.kind.value}")
        try:
            if move.kind is MoveKind.SWAP_OUT:
                self.swap_file.write(move.target, move.source)
            else:
                self.swap_file.read(move.source, move.target)
        except OSError as error:
            logger.warning("a block could not be swapped, it will be computed again: %s", error)
            return False
        return True


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    # NumPy's zeros are pages that the system maps on first use: a large pool costs nothing until
    # it is filled. torch.zeros would write every page at start.
    raw = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype).view(shape)
