"""A step's batch: one buffer of integers with named fields, filled once.

All that a rank needs to compute a step is this buffer and its header, so they can be sent as they
are.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack as pack_values
from struct import pack_into, unpack
from typing import NamedTuple

import torch
from torch import Tensor

from quire.core.memory import BlockTable
from quire.core.protocol import Chunk, column_biases
from quire.kernels.ops import AttentionBatch, ColumnBias, KVGroupTables, StateSlots, Texts


class Header(NamedTuple):
    """How to read a buffer."""

    tokens: int
    seqs: int
    widths: tuple[int, ...]  # blocks of the widest table, by KV group
    sink_blocks: tuple[int, ...]  # KVGroupTables.num_sink_blocks, by KV group
    block_size: int
    asked: int  # rows that are read out
    fed: int  # tokens that only the device knows
    adapted: int = 0  # sequences, if any of them has an adapter
    biases: int = 0  # of each token, if any sequence has soft cuts
    states: int = 0  # sequences, if the model's layers keep states
    drafted: int = 0  # sequences, if a state has drafts before it or after it
    left: int = 0  # tokens, if states are left after some of them

    @property
    def lengths(self) -> list[int]:
        """Lengths of the fields, in elements, in their order."""
        tokens, seqs = self.tokens, self.seqs
        lengths = [tokens, tokens, seqs + 1, seqs, seqs, self.asked, self.fed, self.fed]
        lengths += (self.adapted, tokens * self.biases, tokens * self.biases)
        lengths += (self.states, self.drafted, self.drafted, self.left)
        for width in self.widths:
            lengths += (tokens, seqs, seqs * width)
        return lengths


_BY_KV_GROUP = 15  # fields before those of the KV groups


class Fields(NamedTuple):
    """What a buffer holds."""

    token_ids: Tensor  # [T] int64
    attention: AttentionBatch
    asked: Tensor  # [R] int64, rows of tokens
    fed_places: Tensor  # [F] int64, tokens that only the device knows: it has sampled them
    fed_rows: Tensor  # [F] int64, where they are among what it has sampled
    adapters: Tensor  # [S] int64, the number of each sequence's in the step, -1: none; or [0]


class StepBatch(NamedTuple):
    """A batch in main memory."""

    header: Header
    buffer: Tensor  # int64
    query_starts: tuple[int, ...]  # S + 1 row bounds, for those who plan by them
    given: tuple[tuple[int, Tensor], ...] = ()  # see ``AttentionBatch``; of one rank alone

    def fields(self) -> Fields:
        """Views of the buffer."""
        header = self.header
        parts = self.buffer.split_with_sizes(header.lengths)
        token_ids, positions, bounds, contexts, output_starts, *others = parts[:_BY_KV_GROUP]
        asked, places, rows, adapters, before, bias, *states = others
        kv_groups: list[KVGroupTables] = []
        place = _BY_KV_GROUP
        for width, sinks in zip(header.widths, header.sink_blocks, strict=True):
            slots, dropped, tables = parts[place : place + 3]
            kv_groups.append(KVGroupTables(slots, tables.view(header.seqs, width), dropped, sinks))
            place += 3
        attention = AttentionBatch(
            positions,
            self.query_starts,
            contexts,
            output_starts,
            tuple(kv_groups),
            header.block_size,
            bounds,
            given=self.given,
            bias=_column_bias(header, before, bias) if header.biases else None,
            states=_state_slots(header, states) if header.states else None,
        )
        return Fields(token_ids, attention, asked, places, rows, adapters)


def pack(
    chunks: Sequence[Chunk],
    block_size: int,
    asked: Sequence[int] = (),
    fed_places: Sequence[int] = (),
    fed_rows: Sequence[int] = (),
    adapters: Sequence[int] = (),
) -> StepBatch:
    """The batch of chunks, their tokens in order.

    asked: rows of tokens that are read out. fed_places, fed_rows, adapters: see ``Fields``.

    Fields are lists that become one array at the end: most steps have few tokens, and weights
    have just emptied the caches, so the quickest way touches little code and memory.
    """
    token_ids, positions, ends, output_starts = list[int](), list[int](), list[int](), list[int]()
    bounds, tables, has_cuts = [0], list[BlockTable](), False
    for _, own_ids, start, table, output_start, _, cuts, _ in chunks:
        end = start + len(own_ids)
        token_ids += own_ids
        positions += range(start, end)
        bounds.append(len(token_ids))
        ends.append(end)
        output_starts.append(output_start)
        tables.append(table)
        has_cuts = has_cuts or len(cuts) > 0
    numbers = [*token_ids, *positions, *bounds, *ends, *output_starts]
    numbers += [*asked, *fed_places, *fed_rows, *adapters]
    biases = _add_biases(numbers, chunks, ends) if has_cuts else 0
    groups, of_states = [tables], (0, 0, 0)
    groups += [[table.further[i] for table in tables] for i in range(len(tables[0].further))]
    if groups[-1][0].keeps_state:  # those come last
        of_states = _add_states(numbers, groups.pop(), chunks)
    widths, sinks = list[int](), list[int]()
    for own in groups:
        widths.append(_add_kv_group(numbers, own, chunks, ends, block_size))
        sinks.append(own[0].num_sink_blocks)
    kv_groups = tuple(widths), tuple(sinks)
    counts = len(asked), len(fed_places), len(adapters), biases, *of_states
    header = Header(len(token_ids), len(chunks), *kv_groups, block_size, *counts)
    return StepBatch(header, _tensor(numbers), tuple(bounds))


def _add_biases(numbers: list[int], chunks: Sequence[Chunk], ends: Sequence[int]) -> int:
    """What soft cuts add to each token's scores: before [T, K], then bias [T, K] as bits; K.

    A cut that is still to come, where what was before it is computed again, is none yet.
    """
    rows: list[list[tuple[int, float]]] = []
    for chunk, end in zip(chunks, ends, strict=True):
        cuts = [cut for cut in chunk.cuts if cut.position < end]
        rows += [column_biases(cuts, i) if cuts else [] for i in range(chunk.start, end)]
    most = max(map(len, rows))
    for row in rows:
        row += [(row[-1][0] if row else 0, 0.0)] * (most - len(row))
    numbers += [before for row in rows for before, _ in row]
    biases = [bias for row in rows for _, bias in row]
    numbers += unpack(f"{len(biases)}q", pack_values(f"{len(biases)}d", *biases))
    return most


def _add_states(
    numbers: list[int], tables: Sequence[BlockTable], chunks: Sequence[Chunk]
) -> tuple[int, int, int]:
    """Slots [S]; confirmed [S] and drafts [S], and where states are left [T], if there are any.
    How many of each.
    """
    numbers += [table.block_ids[0] for table in tables]
    confirmed = [table.confirmed for table in tables]
    drafts = [len(chunk.drafts) for chunk in chunks]
    drafted = any(confirmed) or any(drafts)
    if drafted:
        numbers += (*confirmed, *drafts)
    left: list[int] = []
    if any(chunk.left for chunk in chunks):
        for chunk in chunks:
            own = [-1] * len(chunk.token_ids)
            for place, slot in chunk.left:
                own[place - chunk.start - 1] = slot
            left += own
        numbers += left
    return len(tables), len(tables) if drafted else 0, len(left)


def _state_slots(header: Header, fields: Sequence[Tensor]) -> StateSlots:
    slots, confirmed, drafts, left = fields
    slots_of = StateSlots(slots, left=left if header.left else None)
    return slots_of._replace(confirmed=confirmed, drafts=drafts) if header.drafted else slots_of


def _column_bias(header: Header, before: Tensor, bias: Tensor) -> ColumnBias:
    shape = header.tokens, header.biases
    return ColumnBias(before.view(shape), bias.view(torch.float64).float().view(shape))


def _add_kv_group(
    numbers: list[int],
    tables: Sequence[BlockTable],
    chunks: Sequence[Chunk],
    ends: Sequence[int],
    block_size: int,
) -> int:
    """Slots [T] of the chunks' tokens, which end at ``ends``; num_dropped [S]; tables [S, width].

    Returns the width.
    """
    width, all_dropped = 0, list[int]()
    for (blocks, _, num_dropped, *_), chunk, end in zip(tables, chunks, ends, strict=True):
        first = chunk.start
        while first < end:
            offset = first % block_size
            last = min(end, first - offset + block_size)
            slot = blocks[first // block_size - num_dropped] * block_size + offset
            numbers += range(slot, slot + last - first)
            first = last
        all_dropped.append(num_dropped)
        width = max(width, len(blocks))
    numbers += all_dropped
    for table in tables:
        numbers += table.block_ids
        numbers += (0,) * (width - len(table.block_ids))
    return width


def pack_texts(chunks: Sequence[Chunk], counts: Sequence[int], block_size: int) -> Texts:
    """Texts that a model goes on with by itself, once it has computed the tokens of these chunks.

    counts: descending.
    """
    lengths = [len(chunk.token_ids) for chunk in chunks]
    last = [chunk.start + length - 1 for chunk, length in zip(chunks, lengths, strict=True)]
    numbers = [*counts, *lengths, *last]
    positions: list[int] = []
    starts: list[int] = []
    for chunk, end in zip(chunks, last, strict=True):
        numbers += chunk.token_ids
        positions += range(chunk.start, end + 1)
        starts += (chunk.output_start,) * len(chunk.token_ids)
    groups = [*zip(*(chunk.table.kv_groups for chunk in chunks), strict=True)]
    slots = groups.pop() if groups[-1][0].keeps_state else None  # those come last
    # A state keeps no trace of drafts: each pass computes all of them anew.
    drafts = [len(chunk.drafts) for chunk in chunks]
    texts = len(chunks)
    for number in range(1, counts[0]):
        while counts[texts - 1] <= number:
            texts -= 1
        for i in range(texts):
            first = number if slots is None else 1 - drafts[i]
            positions += range(last[i] + first, last[i] + number + 1)
            starts += (chunks[i].output_start,) * (number + 1 - first)
    kv_groups = []
    for tables in groups:
        width = max(len(table.block_ids) for table in tables)
        for table in tables:
            numbers += table.block_ids
            numbers += (0,) * (width - len(table.block_ids))
        numbers += [table.num_dropped for table in tables]
        kv_groups.append((width, tables[0].num_sink_blocks))
    if slots is not None:
        numbers += [table.block_ids[0] for table in slots]
        numbers += drafts
    return Texts(
        tuple(counts),
        sum(lengths),
        _tensor(numbers),
        _tensor(positions),
        _tensor(starts),
        tuple(kv_groups),
        block_size,
        slots is not None,
    )


def _tensor(numbers: Sequence[int]) -> Tensor:
    """[n] int64, at a third of what NumPy and PyTorch take to read a list."""
    buffer = bytearray(8 * len(numbers))
    pack_into(f"{len(numbers)}q", buffer, 0, *numbers)
    return torch.frombuffer(buffer, dtype=torch.int64)
