"""Batches over blocks that lie one after another, and random tensors for them."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.kernels.layer_memory import LayerKV
from quire.kernels.ops import AttentionBatch, KVGroupTables

BLOCK_SIZE = 4


def make_batch(
    contexts: list[tuple[int, int]], sink_blocks: int = 0, block_size: int = BLOCK_SIZE
) -> tuple[AttentionBatch, int]:
    """(context, new tokens) of each sequence, in blocks one after another; and their number."""
    widths = [-(-context // block_size) for context, _ in contexts]
    first, rows, slots, positions, starts = 0, [], [], [], [0]
    for (context, new), width in zip(contexts, widths, strict=True):
        rows.append([*range(first, first + width), *[0] * (max(widths) - width)])
        where = torch.arange(context - new, context)
        positions.append(where)
        slots.append(first * block_size + where)
        starts.append(starts[-1] + new)
        first += width
    lengths = torch.tensor([context for context, _ in contexts])
    none = torch.zeros(len(contexts), dtype=torch.int64)
    kv_group = KVGroupTables(torch.cat(slots), torch.tensor(rows), none, sink_blocks)
    batch = AttentionBatch(
        torch.cat(positions), tuple(starts), lengths, lengths, (kv_group,), block_size
    )
    return batch, first


def make_kv(num_blocks: int, heads: int, dim: int, block_size: int = BLOCK_SIZE) -> LayerKV:
    generator = torch.Generator().manual_seed(1)
    keys, values = (
        torch.randn(num_blocks, heads, block_size, dim, generator=generator) for _ in range(2)
    )
    return LayerKV(keys, values)


def make_new(batch: AttentionBatch, heads: int, kv_heads: int, dim: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    tokens = len(batch.positions)
    return [torch.randn(tokens, h, dim, generator=generator) for h in (heads, kv_heads, kv_heads)]
