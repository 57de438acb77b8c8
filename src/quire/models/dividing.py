"""What a rank's projections are made of: rows and columns of the checkpoint's."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from quire.models.blueprint import Heads
from quire.models.shard import Shard


def rows_of_heads(
    shard: Shard, heads: Heads, order: Tensor | None = None
) -> Mapping[str, Tensor] | None:
    """The outputs of q, k and v, side by side, of the rank's heads; None: all of them.

    order: the stored row of each row.
    """
    if shard.is_whole and order is None:
        return None
    widths = heads.dim, heads.dim, heads.value_dim
    counts = heads.num, heads.num_kv, heads.num_kv
    sizes = [count * width for count, width in zip(counts, widths, strict=True)]
    stored = torch.arange(sum(sizes)) if order is None else order
    query, kv = shard.run(heads.num), shard.kv_heads(heads.num_kv)
    return {
        name: rows.view(-1, width)[held.start : held.stop].flatten()
        for name, rows, width, held in zip(
            "qkv", torch.split(stored, sizes), widths, (query, kv, kv), strict=True
        )
    }


def rows_of_parts(shard: Shard, parts: Mapping[str, int]) -> Mapping[str, Tensor] | None:
    """The rank's share of each part's outputs, side by side; None: all of them."""
    if shard.is_whole:
        return None
    rows, first = {}, 0
    for name, count in parts.items():
        held = shard.run(count)
        rows[name] = torch.arange(first + held.start, first + held.stop)
        first += count
    return rows
