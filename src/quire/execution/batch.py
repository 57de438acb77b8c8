"""A step's chunks as the arrays that a model and its attention read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from quire.kernels.ops import AttentionBatch, LaneTables
from quire.memory import BlockTable
from quire.scheduling import Chunk

Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


def build_batch(chunks: Sequence[Chunk], block_size: int) -> tuple[Tensor, AttentionBatch]:
    """Token ids [T] int64 of all chunks, in order, and where each of them stands."""
    lengths = np.array([len(chunk.token_ids) for chunk in chunks])
    starts = np.array([chunk.start for chunk in chunks])
    bounds = np.concatenate(([0], lengths.cumsum()))
    num_tokens = int(bounds[-1])
    token_ids = np.fromiter(
        chain.from_iterable(chunk.token_ids for chunk in chunks), np.int64, num_tokens
    )
    sequence = np.repeat(np.arange(len(chunks)), lengths)  # of each token
    positions = np.arange(num_tokens) - bounds[sequence] + starts[sequence]
    batch = AttentionBatch(
        positions=torch.from_numpy(positions),
        query_starts=tuple(bounds.tolist()),
        context_lens=torch.from_numpy(starts + lengths),
        prompt_lens=torch.tensor([chunk.output_start for chunk in chunks]),
        lanes=tuple(
            _lane_tables(tables, sequence, positions, block_size)
            for tables in zip(*(chunk.table.lanes for chunk in chunks), strict=True)
        ),
        block_size=block_size,
    )
    return torch.from_numpy(token_ids), batch


def _lane_tables(
    tables: Sequence[BlockTable], sequence: Ints, positions: Ints, block_size: int
) -> LaneTables:
    """``tables`` [S] are of the sequences; ``sequence`` and ``positions`` [T] of the tokens."""
    padded = _pad([table.block_ids for table in tables])
    dropped = np.array([table.num_dropped for table in tables])
    columns = positions // block_size - dropped[sequence]
    slots = padded[sequence, columns] * block_size + positions % block_size
    return LaneTables(
        torch.from_numpy(slots),
        torch.from_numpy(padded),
        torch.from_numpy(dropped),
        tables[0].num_sink_blocks,
    )


def _pad(rows: Sequence[Sequence[int]]) -> Ints:
    """[S, widest], with zeros where a row has ended."""
    widths = np.array([len(row) for row in rows])
    padded = np.zeros((len(rows), int(widths.max())), np.int64)
    flat = np.fromiter(chain.from_iterable(rows), np.int64, int(widths.sum()))
    padded[np.arange(padded.shape[1]) < widths[:, None]] = flat
    return padded
