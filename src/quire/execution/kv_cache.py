"""The pool's tensors, allocated once, and the moves of whole blocks between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

import numpy as np
import torch

from quire.kernels.ops import AttentionBackend, KVShape, LayerKV
from quire.memory import BlockMove, MoveKind


def bytes_per_token(shapes: Sequence[KVShape], dtype: torch.dtype) -> int:
    """KV bytes of one token over all layers."""
    elements = sum(s.num_kv_heads * (s.key_dim + s.value_dim) for s in shapes)
    return elements * dtype.itemsize


class KVCache:
    """Keys and values of all layers, in ``num_blocks`` blocks of ``block_size`` tokens."""

    def __init__(
        self,
        shapes: Sequence[KVShape],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        attention: AttentionBackend,
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

    def move(self, moves: Sequence[BlockMove]) -> None:
        """Carry out moves in their order; neighbours of one kind go together."""
        for kind, run in groupby(moves, key=lambda move: move.kind):
            if kind is not MoveKind.COPY:
                raise ValueError(f"this cache has no host blocks, so it cannot {kind.value}")
            pairs = [(move.source, move.target) for move in run]
            for layer in self.layers:
                self._attention.copy_blocks(layer, layer, pairs)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    # NumPy's zeros are pages that the system maps on first use: a large pool costs nothing until
    # it is filled. torch.zeros would write every page at start.
    raw = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype).view(shape)
