"""A step's chunks as the arrays that a model and its attention read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from struct import pack_into

import torch
from torch import Tensor

from quire.kernels.ops import AttentionBatch, LaneTables
from quire.memory import BlockTable
from quire.scheduling import Chunk


def build_batch(chunks: Sequence[Chunk], block_size: int) -> tuple[Tensor, AttentionBatch]:
    """Token ids [T] int64 of all chunks, in order, and where each of them stands.

    Lists, which become arrays once they are whole: most steps have few tokens, and the weights
    have just been through the caches, so it is quickest to touch little code and memory.
    """
    token_ids: list[int] = []
    positions: list[int] = []
    ends: list[int] = []
    for chunk in chunks:
        end = chunk.start + len(chunk.token_ids)
        token_ids += chunk.token_ids
        positions += range(chunk.start, end)
        ends.append(end)
    by_lane = zip(*(chunk.table.lanes for chunk in chunks), strict=True)
    batch = AttentionBatch(
        positions=_tensor(positions),
        query_starts=tuple(accumulate((len(chunk.token_ids) for chunk in chunks), initial=0)),
        context_lens=_tensor(ends),
        prompt_lens=_tensor([chunk.output_start for chunk in chunks]),
        lanes=tuple(_lane_tables(tables, chunks, ends, block_size) for tables in by_lane),
        block_size=block_size,
    )
    return _tensor(token_ids), batch


def _lane_tables(
    tables: Sequence[BlockTable], chunks: Sequence[Chunk], ends: Sequence[int], block_size: int
) -> LaneTables:
    """Each chunk's table, and the slots of its tokens, which end at ``ends`` [S]."""
    slots: list[int] = []
    padded: list[int] = []
    dropped: list[int] = []
    widest = max(len(table.block_ids) for table in tables)
    for table, chunk, end in zip(tables, chunks, ends, strict=True):
        blocks, num_dropped = table.block_ids, table.num_dropped
        first = chunk.start
        while first < end:
            offset = first % block_size
            last = min(end, first - offset + block_size)
            slot = blocks[first // block_size - num_dropped] * block_size + offset
            slots += range(slot, slot + last - first)
            first = last
        padded += blocks
        padded += (0,) * (widest - len(blocks))
        dropped.append(num_dropped)
    return LaneTables(
        _tensor(slots),
        _tensor(padded).view(len(tables), widest),
        _tensor(dropped),
        tables[0].num_sink_blocks,
    )


def _tensor(numbers: Sequence[int]) -> Tensor:
    """[n] int64, at a third of what NumPy and PyTorch take to read a list."""
    buffer = bytearray(8 * len(numbers))
    pack_into(f"{len(numbers)}q", buffer, 0, *numbers)
    return torch.frombuffer(buffer, dtype=torch.int64)
