"""A step's chunks as the arrays that a model and its attention read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from quire.kernels.ops import AttentionBatch
from quire.scheduling import Chunk


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
    tables = _pad([chunk.table.block_ids for chunk in chunks])
    slots = tables[sequence, positions // block_size] * block_size + positions % block_size
    batch = AttentionBatch(
        positions=torch.from_numpy(positions),
        slots=torch.from_numpy(slots),
        query_starts=tuple(bounds.tolist()),
        context_lens=torch.from_numpy(starts + lengths),
        prompt_lens=torch.tensor([len(chunk.request.prompt_token_ids) for chunk in chunks]),
        block_tables=torch.from_numpy(tables),
        block_size=block_size,
    )
    return torch.from_numpy(token_ids), batch


def _pad(tables: Sequence[tuple[int, ...]]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """[S, widest] block ids, filled up with block 0."""
    widths = np.array([len(table) for table in tables])
    padded = np.zeros((len(tables), int(widths.max())), np.int64)
    flat = np.fromiter(chain.from_iterable(tables), np.int64, int(widths.sum()))
    padded[np.arange(padded.shape[1]) < widths[:, None]] = flat
    return padded
