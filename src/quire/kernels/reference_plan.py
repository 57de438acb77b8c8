"""Where the reference kernels find a step's tokens: index arrays that all layers share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.kernels.ops import AttentionBatch, ColumnBias, KVGroupTables


@dataclass(frozen=True)
class Prefill:
    """Several new tokens of one sequence."""

    rows: slice  # of the batch
    start: int  # position of the first new token
    first: int  # position of the first token that is kept, sinks excepted
    slots: Tensor  # [context - first] where the tokens from there on are kept
    sink_slots: Tensor  # [sinks kept], and those of the first ones
    bias: ColumnBias | None


@dataclass(frozen=True)
class Decodes:
    """The sequences with one new token each, those that keep least first.

    Columns are aligned at the right, where the new tokens are: a window is the last columns, and
    so is all that a slice of shorter sequences needs. Columns before what a sequence keeps are
    not ``visible``; they repeat the newest slot, which was just written, because a weight of zero
    does not silence a NaN.
    """

    rows: Tensor  # [R] of the batch
    positions: Tensor  # [R] of the new tokens
    kept: list[int]  # R numbers of tokens, ascending
    slots: Tensor  # [R, most kept]
    visible: Tensor  # [R, most kept] bool
    sink_slots: Tensor  # [R, sinks kept] of the first tokens
    bias: ColumnBias | None


@dataclass(frozen=True)
class ReferencePlan:
    """The slots that a step's tokens are written to in one KV group, and those that they read."""

    slots: Tensor  # [T]
    prefills: list[Prefill]
    decodes: Decodes | None
    block_size: int

    def by_row(self, tokens: int) -> list[Tensor]:
        """The slots of what each row of the batch sees, where nothing is dropped."""
        found = [self.slots[:0]] * tokens
        for prefill in self.prefills:
            for row in range(prefill.rows.start, prefill.rows.stop):
                found[row] = prefill.slots[: prefill.start + row - prefill.rows.start + 1]
        if self.decodes is not None:
            own = zip(self.decodes.rows.tolist(), self.decodes.kept, strict=True)
            for place, (row, kept) in enumerate(own):
                found[row] = self.decodes.slots[place, -kept:]
        return found

    def among(self, slots: Sequence[Tensor]) -> ReferencePlan:
        """The same tokens, of which each sees what is in these slots."""
        rows = sorted(range(len(slots)), key=lambda row: len(slots[row]))
        kept = [len(slots[row]) for row in rows]
        counts = torch.tensor(kept, device=self.slots.device)
        padded = [
            torch.cat((slots[row][-1:].expand(kept[-1] - count), slots[row]))
            for row, count in zip(rows, kept, strict=True)
        ]
        columns = torch.arange(kept[-1], device=self.slots.device)
        decodes = Decodes(
            rows=torch.tensor(rows, device=self.slots.device),
            positions=counts - 1,
            kept=kept,
            slots=torch.stack(padded),
            visible=columns >= kept[-1] - counts[:, None],
            sink_slots=self.slots.new_empty((len(rows), 0)),
            bias=None,
        )
        return ReferencePlan(self.slots, [], decodes, self.block_size)


def plan_kv_group(
    batch: AttentionBatch, kv_group: KVGroupTables, contexts: list[int]
) -> ReferencePlan:
    size, dropped = batch.block_size, kv_group.num_dropped.tolist()
    # The first token that is kept beside the sinks; with nothing dropped, simply the first.
    firsts = [(kv_group.num_sink_blocks + gone) * size if gone else 0 for gone in dropped]
    prefills, singles = [], []
    bounds = zip(batch.query_starts, batch.query_starts[1:], strict=False)
    for seq, (start, stop) in enumerate(bounds):
        if stop - start == 1:
            singles.append(seq)
        elif stop > start:
            context = contexts[seq]
            kept = torch.arange(firsts[seq], context, device=kv_group.slots.device)
            sinks = torch.arange(
                min(kv_group.num_sink_blocks * size, context), device=kv_group.slots.device
            )
            prefills.append(
                Prefill(
                    slice(start, stop),
                    context - (stop - start),
                    firsts[seq],
                    _slots(kv_group.block_tables[seq], kept - dropped[seq] * size, size),
                    _slots(kv_group.block_tables[seq], sinks, size),
                    batch.bias,
                )
            )
    decodes = _plan_decodes(batch, kv_group, contexts, firsts, singles) if singles else None
    return ReferencePlan(kv_group.slots, prefills, decodes, size)


def _plan_decodes(
    batch: AttentionBatch,
    kv_group: KVGroupTables,
    contexts: list[int],
    firsts: list[int],
    seqs: list[int],
) -> Decodes:
    seqs = sorted(seqs, key=lambda seq: contexts[seq] - firsts[seq])
    kept = [contexts[seq] - firsts[seq] for seq in seqs]
    device, size = kv_group.slots.device, batch.block_size
    index = torch.tensor(seqs, device=device)
    tables, dropped = kv_group.block_tables[index], kv_group.num_dropped[index, None]
    newest = batch.context_lens[index, None] - 1
    first = torch.tensor([firsts[seq] for seq in seqs], device=device)[:, None]
    positions = newest - torch.arange(kept[-1] - 1, -1, -1, device=device)
    visible = positions >= first
    places = torch.where(visible, positions, newest) - dropped * size
    sinks = torch.arange(kv_group.num_sink_blocks * size, device=device).expand(len(seqs), -1)
    sinks = torch.where(sinks <= newest, sinks, newest - dropped * size)
    return Decodes(
        rows=torch.tensor([batch.query_starts[seq] for seq in seqs], device=device),
        positions=newest[:, 0],
        kept=kept,
        slots=_slots(tables, places, size),
        visible=visible,
        sink_slots=_slots(tables, sinks, size),
        bias=batch.bias,
    )


def _slots(table: Tensor, places: Tensor, block_size: int) -> Tensor:
    """Slots of ``places`` [..., C], counted in the tokens of the blocks ``table`` [..., blocks]."""
    return table.gather(-1, places // block_size) * block_size + places % block_size
