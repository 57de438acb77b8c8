"""Attention over block tables: batches of random tensors, and the definition in float64."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quire.kernels.layer_memory import LayerKV
from quire.kernels.ops import (
    AttentionBatch,
    AttentionSpec,
    ColumnBias,
    Kernels,
    KVGroupTables,
    Rotation,
)
from support.kv_tiles import to_rows, to_tiles

# (context, new tokens): decodes and prefills mixed, whole prompts and later chunks, long and short.
RAGGED = ((1, 1), (5, 5), (9, 1), (33, 7), (40, 1), (17, 17), (3, 2), (16, 1), (2, 1))


@dataclass(frozen=True)
class Case:
    """A batch, its pool as earlier steps left it, and the whole sequences as plain tensors."""

    batch: AttentionBatch
    kv: LayerKV
    query: Tensor  # [T, H, D] of the new tokens
    keys: list[Tensor]  # of each sequence, [context, Hkv, D]
    values: list[Tensor]

    def new(self, of: list[Tensor]) -> Tensor:
        counts = [
            b - a
            for a, b in zip(self.batch.query_starts, self.batch.query_starts[1:], strict=False)
        ]
        return torch.cat([tensor[-count:] for tensor, count in zip(of, counts, strict=True)])


def make_case(
    dtype: torch.dtype = torch.float32,
    heads: tuple[int, int] = (4, 2),
    dims: tuple[int, int] = (16, 16),
    block_size: int = 4,
    ragged: tuple[tuple[int, int], ...] = RAGGED,
    sinks: int = 0,
    window: int | None = None,
    by_chunks: bool = False,
) -> Case:
    """Random tensors; block ids in random order; every slot not yet written holds NaN.

    Blocks between the sinks and the ``window`` of the first new token are not in the tables.
    """
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    num_heads, kv_heads = heads
    counts = [-(-context // block_size) for context, _ in ragged]
    ids = list(range(sum(counts) + 3))
    random.Random(0).shuffle(ids)
    pools = [
        torch.full((len(ids), kv_heads, block_size, dim), torch.nan, dtype=dtype) for dim in dims
    ]
    starts, positions, slots, tables = [0], [], [], []
    keys, values, dropped = [], [], []
    sink_blocks = -(-sinks // block_size)
    for (context, new), count in zip(ragged, counts, strict=True):
        table = [ids.pop() for _ in range(count)]
        keys.append(normal(context, kv_heads, dims[0]))
        values.append(normal(context, kv_heads, dims[1]))
        where = torch.arange(context)
        blocks, offsets = torch.tensor(table)[where // block_size], where % block_size
        old = slice(context - new)
        pools[0][blocks[old], :, offsets[old]] = keys[-1][old]
        pools[1][blocks[old], :, offsets[old]] = values[-1][old]
        positions.append(where[context - new :])
        slots.append((blocks * block_size + offsets)[context - new :])
        starts.append(starts[-1] + new)
        seen = 0 if window is None else oldest_seen(torch.tensor(context - new), window, by_chunks)
        behind = int(seen) // block_size
        dropped.append(max(0, behind - sink_blocks))
        gone = blocks.unique_consecutive()[sink_blocks : sink_blocks + dropped[-1]]
        for pool in pools:
            pool[gone] = torch.nan
        del table[sink_blocks : sink_blocks + dropped[-1]]
        tables.append(table + [0] * (max(counts) - len(table)))
    contexts = torch.tensor([context for context, _ in ragged])
    batch = AttentionBatch(
        positions=torch.cat(positions),
        query_starts=tuple(starts),
        context_lens=contexts,
        output_starts=contexts,
        kv_groups=(
            KVGroupTables(
                torch.cat(slots), torch.tensor(tables), torch.tensor(dropped), sink_blocks
            ),
        ),
        block_size=block_size,
    )
    return Case(batch, LayerKV(*pools), normal(starts[-1], num_heads, dims[0]), keys, values)


def oldest_seen(positions: Tensor, window: int, by_chunks: bool) -> Tensor:
    if by_chunks:
        return positions // window * window
    return (positions - window + 1).clamp(min=0)


def biased(case: Case, steps: int = 3) -> Case:
    """The case with something added to scores, other numbers in other places for every token."""
    generator = torch.Generator().manual_seed(1)
    positions = case.batch.positions[:, None]
    parts = torch.rand((len(positions), steps), generator=generator)
    before = (parts * (positions + 1)).long().sort(dim=1).values
    bias = -3 * torch.rand(before.shape, generator=generator)
    bias = torch.where(torch.rand(before.shape, generator=generator) < 0.2, -torch.inf, bias)
    before[::5], bias[1::5] = 0, 0.0  # to nobody; nothing
    return replace(case, batch=replace(case.batch, bias=ColumnBias(before, bias)))


def added(case: Case, row: int, keys: int) -> Tensor:
    """To the scores of a row of the batch, for its sequence's keys, in float64."""
    total = torch.zeros(keys, dtype=torch.float64)
    if case.batch.bias is not None:
        before, bias = case.batch.bias.before[row], case.batch.bias.bias[row]
        for end, one in reversed(list(zip(before.tolist(), bias.tolist(), strict=True))):
            total[:end] = one
    return total


def attend(
    kernels: Kernels,
    case: Case,
    spec: AttentionSpec,
    rotation: Rotation | None = None,
    kv: LayerKV | None = None,
) -> Tensor:
    """On a copy of the pool, or on ``kv``: rows, of which the kernels get tiles."""
    tiles = to_tiles(kernels, case.kv if kv is None else kv)
    plan = kernels.plan(case.batch)
    found = kernels.attend(
        case.query, case.new(case.keys), case.new(case.values), tiles, spec, plan, rotation
    )
    if kv is not None:
        for part, after in zip(kv.parts, to_rows(kernels, tiles).parts, strict=True):
            part.copy_(after)
    return found


def plain(case: Case, spec: AttentionSpec, sink_query: Tensor | None = None) -> Tensor:
    """The definition, one sequence at a time, in float64."""
    outputs = []
    heads = case.query.shape[1]
    sink_query = case.query if sink_query is None else sink_query
    bounds = zip(case.batch.query_starts, case.batch.query_starts[1:], strict=False)
    for (first, last), keys, values in zip(bounds, case.keys, case.values, strict=True):
        k = torch.arange(len(keys))
        q = k[len(keys) - (last - first) :, None]
        hidden = k > q
        beyond = torch.zeros_like(hidden)
        if spec.window is not None:
            beyond = k < oldest_seen(q, spec.window, spec.by_chunks)
        hidden |= beyond & (k >= spec.sinks)
        group = heads // keys.shape[1]
        keys, values = (x.double().repeat_interleave(group, dim=1) for x in (keys, values))
        near, far = (
            torch.einsum("qhd,khd->hqk", query[first:last].double(), keys) * spec.scale
            for query in (case.query, sink_query)
        )
        scores = torch.where(beyond, far, near)
        if spec.softcap is not None:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        scores += torch.stack([added(case, row, len(k)) for row in range(first, last)])
        scores = scores.masked_fill(hidden, -torch.inf)
        if spec.sink_logits is not None:
            sink = spec.sink_logits.double()[:, None, None].expand(-1, len(q), -1)
            scores = torch.cat([scores, sink], dim=2)
        weights = scores.softmax(dim=-1)[..., : len(keys)]
        outputs.append(torch.einsum("hqk,khd->qhd", weights, values))
    return torch.cat(outputs)
