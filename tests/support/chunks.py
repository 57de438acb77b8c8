"""Chunks of a few sequences with blocks of their own, four tokens each."""

from __future__ import annotations

from quire.core.memory import BlockTable
from quire.core.protocol import Chunk, Readout

_BLOCKS = 3  # of each sequence


def make_chunk(seq_id: int, start: int, count: int) -> Chunk:
    """Blocks 3 s, 3 s + 1, 3 s + 2 are sequence s's."""
    tokens = [5 + (7 * seq_id + 3 * i) % 250 for i in range(start, start + count)]
    blocks = tuple(_BLOCKS * seq_id + i for i in range(_BLOCKS))
    return Chunk(seq_id, tokens, start, BlockTable(blocks, 16), 9, Readout())


def decode_chunks() -> list[list[Chunk]]:
    """Steps of one token each, of one sequence, then of three, then of two."""
    return [
        [make_chunk(0, 0, 1)],
        *([make_chunk(seq_id, i, 1) for seq_id in (0, 1, 2)] for i in range(1, 6)),
        [make_chunk(2, 6, 1), make_chunk(0, 6, 1)],
    ]
