"""Paged attention in plain torch: the judge that faster backends are tested against.

Everything is gathered through the block table, multiplied in float32 (float64 for float64 inputs)
and never looked at beyond a sequence's context, so stale slots may hold anything, even NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.kernels.ops import AttentionBatch, AttentionSpec, LaneTables, LayerKV

# Scores of a prefill slice, or gathered keys and values of a decode slice, in elements: 32 MiB of
# float32. More is cut into slices, so that memory does not grow with the batch.
_SLICE_ELEMENTS = 1 << 23


@dataclass(frozen=True)
class _Prefill:
    """Several new tokens of one sequence."""

    rows: slice  # of the batch
    start: int  # position of the first new token
    slots: Tensor  # [context] where positions 0, 1, ... are kept


@dataclass(frozen=True)
class _Decodes:
    """The sequences with one new token each, shortest context first.

    Columns are aligned at the right, where the new tokens are: a window is the last columns, and
    so is all that a slice of shorter sequences needs. Columns before a sequence's beginning are
    not ``visible``; they repeat the newest slot, which was just written, because a weight of zero
    does not silence a NaN.
    """

    rows: Tensor  # [R] of the batch
    contexts: list[int]  # R lengths, ascending
    slots: Tensor  # [R, longest context]
    visible: Tensor  # [R, longest context] bool


@dataclass(frozen=True)
class ReferencePlan:
    """Where a step's tokens are written in one lane, and what each of them reads."""

    slots: Tensor  # [T]
    prefills: list[_Prefill]
    decodes: _Decodes | None
    block_size: int


class ReferenceAttention:
    """An ``AttentionBackend`` for any device that torch has."""

    def plan(self, batch: AttentionBatch) -> list[ReferencePlan]:
        """By lane, index arrays that its layers share; reads ``context_lens`` on the host."""
        contexts: list[int] = batch.context_lens.tolist()
        return [_plan_lane(batch, lane, contexts) for lane in batch.lanes]

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv: LayerKV,
        spec: AttentionSpec,
        plan: Sequence[ReferencePlan],
    ) -> Tensor:
        """See ``AttentionBackend.attend``; the result has the query's dtype."""
        own = plan[kv.lane]
        blocks, offsets = own.slots // own.block_size, own.slots % own.block_size
        kv.keys[blocks, :, offsets] = key.to(kv.keys.dtype)
        kv.values[blocks, :, offsets] = value.to(kv.values.dtype)

        output = query.new_empty(*query.shape[:2], value.shape[2])
        for prefill in own.prefills:
            output[prefill.rows] = _attend_prefill(query[prefill.rows], kv, spec, prefill)
        if own.decodes is not None:
            rows = own.decodes.rows
            output[rows] = _attend_decodes(query[rows], kv, spec, own.decodes)
        return output

    def copy_blocks(
        self, source: LayerKV, target: LayerKV, pairs: Sequence[tuple[int, int]]
    ) -> None:
        """See ``AttentionBackend.copy_blocks``. One by one: a block may be copied onwards."""
        for origin, destination in pairs:
            target.keys[destination].copy_(source.keys[origin])
            target.values[destination].copy_(source.values[origin])


def _slots_of(table: Tensor, positions: Tensor, block_size: int) -> Tensor:
    """Slots of ``positions`` [..., C] in sequences whose block ids are ``table`` [..., blocks]."""
    return table.gather(-1, positions // block_size) * block_size + positions % block_size


def _plan_lane(batch: AttentionBatch, lane: LaneTables, contexts: list[int]) -> ReferencePlan:
    prefills, singles = [], []
    bounds = zip(batch.query_starts, batch.query_starts[1:], strict=False)
    for seq, (first, last) in enumerate(bounds):
        if last - first == 1:
            singles.append(seq)
        elif last > first:
            positions = torch.arange(contexts[seq], device=lane.slots.device)
            slots = _slots_of(lane.block_tables[seq], positions, batch.block_size)
            start = contexts[seq] - (last - first)
            prefills.append(_Prefill(slice(first, last), start, slots))
    decodes = _plan_decodes(batch, lane, contexts, singles) if singles else None
    return ReferencePlan(lane.slots, prefills, decodes, batch.block_size)


def _plan_decodes(
    batch: AttentionBatch, lane: LaneTables, contexts: list[int], seqs: list[int]
) -> _Decodes:
    seqs = sorted(seqs, key=lambda seq: contexts[seq])
    lengths = [contexts[seq] for seq in seqs]
    device = lane.slots.device
    newest = torch.tensor(lengths, device=device)[:, None] - 1
    positions = newest - torch.arange(lengths[-1] - 1, -1, -1, device=device)
    visible = positions >= 0
    tables = lane.block_tables[torch.tensor(seqs, device=device)]
    slots = _slots_of(tables, torch.where(visible, positions, newest), batch.block_size)
    rows = torch.tensor([batch.query_starts[seq] for seq in seqs], device=device)
    return _Decodes(rows, lengths, slots, visible)


def _attend_prefill(query: Tensor, kv: LayerKV, spec: AttentionSpec, prefill: _Prefill) -> Tensor:
    """query [Q, H, D] -> [Q, H, Dv], a slice of queries at a time."""
    end = prefill.start + len(query)
    oldest = _oldest_visible(prefill.start, spec)
    keys, values = _gather(kv, prefill.slots[None, oldest:], query.dtype)
    step = max(1, _SLICE_ELEMENTS // (query.shape[1] * (end - oldest)))
    outputs = []
    # Masks are made per slice: for the whole chunk they would be as large as one head's scores.
    for first in range(prefill.start, end, step):
        last = min(first + step, end)
        seen_from = _oldest_visible(first, spec)
        q = torch.arange(first, last, device=query.device)[:, None]
        k = torch.arange(seen_from, last, device=query.device)
        visible = k <= q if spec.window is None else (k <= q) & (k > q - spec.window)
        seen = slice(seen_from - oldest, last - oldest)
        part = query[None, first - prefill.start : last - prefill.start]
        outputs.append(_attention(part, keys[:, :, seen], values[:, :, seen], visible[None], spec))
    return torch.cat(outputs, dim=1)[0]


def _attend_decodes(query: Tensor, kv: LayerKV, spec: AttentionSpec, decodes: _Decodes) -> Tensor:
    """query [R, H, D] -> [R, H, Dv], a slice of sequences at a time."""
    _, kv_heads, _, key_dim = kv.keys.shape
    longest = min(decodes.contexts[-1], spec.window or decodes.contexts[-1])
    step = max(1, _SLICE_ELEMENTS // (longest * kv_heads * (key_dim + kv.values.shape[3])))
    outputs = []
    for first in range(0, len(query), step):
        part = slice(first, min(first + step, len(query)))
        columns = slice(-min(decodes.contexts[part.stop - 1], longest), None)
        keys, values = _gather(kv, decodes.slots[part, columns], query.dtype)
        visible = decodes.visible[part, None, columns]
        outputs.append(_attention(query[part, None], keys, values, visible, spec))
    return torch.cat(outputs)[:, 0]


def _oldest_visible(position: int, spec: AttentionSpec) -> int:
    return 0 if spec.window is None else max(0, position - spec.window + 1)


def _gather(kv: LayerKV, slots: Tensor, query_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """slots [R, C] -> keys [R, Hkv, C, D] and values [R, Hkv, C, Dv], ready to multiply."""
    _, kv_heads, block_size, _ = kv.keys.shape
    heads = torch.arange(kv_heads, device=slots.device)[:, None]
    tiles = (slots // block_size)[:, None] * kv_heads + heads  # of a block and a head
    rows = tiles * block_size + (slots % block_size)[:, None]  # [R, Hkv, C]
    dtype = torch.promote_types(query_dtype, torch.float32)
    keys, values = (
        torch.embedding(part.view(-1, part.shape[3]), rows).to(dtype) for part in kv[:2]
    )
    return keys, values


def _attention(
    query: Tensor, keys: Tensor, values: Tensor, visible: Tensor, spec: AttentionSpec
) -> Tensor:
    """Softmax attention of padded sequences.

    query [R, Q, H, D], keys [R, Hkv, C, D], values [R, Hkv, C, Dv], visible [R, Q, C] bool
    -> [R, Q, H, Dv]. The H / Hkv query heads that share a key head make one product.
    """
    rows, queries, heads, _ = query.shape
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    grouped = (
        query.to(keys.dtype).reshape(rows, queries, kv_heads, group, -1).permute(0, 2, 3, 1, 4)
    )
    scores = grouped.flatten(2, 3) @ keys.transpose(2, 3)  # [R, Hkv, group * Q, C]
    scores *= spec.scale
    if spec.softcap is not None:
        scores = scores.div_(spec.softcap).tanh_().mul_(spec.softcap)
    scores.view(rows, kv_heads, group, queries, -1).masked_fill_(
        ~visible[:, None, None], -torch.inf
    )
    output = (scores.softmax(dim=-1) @ values).view(rows, kv_heads, group, queries, -1)
    return output.permute(0, 3, 1, 2, 4).reshape(rows, queries, heads, -1).to(query.dtype)
