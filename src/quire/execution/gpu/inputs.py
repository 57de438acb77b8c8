"""A step's batch on the device, brought there by one copy.

Where each array begins depends only on the numbers of tokens and sequences, so that launches that
were recorded for these numbers find the next batch where the last one was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from quire.execution.batch import Fields, Header, StepBatch
from quire.execution.forward import Sampled
from quire.execution.gpu.graphs import StepSize
from quire.kernels.ops import AttentionBatch, KVGroupTables, StateSlots

_BY_KV_GROUP = 8  # arrays before those of the KV groups
_OF_STATES = 4  # and after those: slots, confirmed drafts, new ones, where states are left


class _Layout(NamedTuple):
    """The buffer for T tokens of S sequences in L KV groups, in elements."""

    tokens: int
    seqs: int
    kv_groups: int
    states: bool = False  # whether layers keep some

    @property
    def lengths(self) -> list[int]:
        """Lengths of the arrays before the block tables, in their order."""
        by_kv_group = [self.tokens, self.seqs] * self.kv_groups  # slots, num_dropped
        of_states = [*[self.seqs] * (_OF_STATES - 1), self.tokens] if self.states else []
        return [self.tokens] * 3 + [self.seqs + 1] + [self.seqs] * 4 + by_kv_group + of_states

    def split(self, buffer: Tensor) -> list[Tensor]:
        """token_ids, positions, asked, bounds, context_lens, output starts, the places and the rows
        of fed tokens, then those by KV group and of states."""
        return list(torch.split(buffer[: sum(self.lengths)], self.lengths))

    def tables(self, buffer: Tensor, width: int) -> list[Tensor]:
        """Block tables by KV group, [S, width]: the first columns of a buffer lie together."""
        start, step = sum(self.lengths), self.kv_groups * self.seqs
        return [
            buffer.as_strided((self.seqs, width), (1, step), start + kv_group * self.seqs)
            for kv_group in range(self.kv_groups)
        ]

    def size(self, width: int) -> int:
        return sum(self.lengths) + self.kv_groups * self.seqs * width


class DeviceInputs:
    """The buffer and its counterpart in main memory, from which it is filled."""

    def __init__(
        self,
        device: torch.device,
        max_tokens: int,
        max_seqs: int,
        max_width: int,
        sink_blocks: Sequence[int],
        block_size: int,
        states: bool = False,
    ) -> None:
        """Make room for ``max_tokens`` tokens of ``max_seqs`` sequences and one that pads.

        max_width: most blocks that one of them reads in a KV group.
        sink_blocks: ``KVGroupTables.num_sink_blocks`` of each KV group that keeps tokens.
        states: whether there is another, that keeps states.
        """
        on_gpu = device.type == "cuda"
        size = _Layout(max_tokens, max_seqs + 1, len(sink_blocks), states).size(max_width)
        self._host = torch.zeros(size, dtype=torch.int64, pin_memory=on_gpu)
        self._device = torch.zeros(size, dtype=torch.int64, device=device)
        self._copied: torch.cuda.Event | None = None
        if on_gpu:
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._max_width = max_width
        self._sink_blocks = tuple(sink_blocks)
        self._block_size = block_size
        self._states = states

    def load(self, batch: StepBatch, sampled: Sampled, size: StepSize | None = None) -> Fields:
        """Bring a batch from main memory to the device, and there give it what it is fed.

        ``size``: to be padded to. Sequences that pad a batch have no tokens in the pool, and their
        new ones go nowhere: of decodes each has one, else the first of them has all.
        """
        header, given = batch.header, batch.fields()
        assert header.sink_blocks == self._sink_blocks
        if self._copied is not None:
            self._copied.synchronize()  # the last batch may not have left main memory yet
        tokens, seqs, decodes = size or (header.tokens, header.seqs, False)
        layout = _Layout(tokens, seqs, len(self._sink_blocks), self._states)
        self._fill(layout, given, header)
        if decodes:
            layout.split(self._host)[3][header.seqs :] = torch.arange(header.seqs, seqs + 1)
        # Beyond what is read there may be blocks for tokens to come.
        width = min(self._max_width, max(header.widths, default=0))
        kv_groups = given.attention.kv_groups
        for table, kv_group in zip(layout.tables(self._host, width), kv_groups, strict=True):
            columns = kv_group.block_tables[:, :width]
            table[: header.seqs, : columns.shape[1]] = columns
        used = layout.size(width)
        self._device[:used].copy_(self._host[:used], non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        inputs = self._views(layout, batch.query_starts, header, size)
        if header.fed:
            inputs.token_ids.index_copy_(0, inputs.fed_places, sampled()[inputs.fed_rows])
        return inputs

    def load_idle(self, size: StepSize) -> Fields:
        """A batch of tokens that do nothing."""
        no_kv_groups = (0,) * len(self._sink_blocks)
        header = Header(0, 0, no_kv_groups, self._sink_blocks, self._block_size, 0, 0)
        nothing = torch.zeros(1, dtype=torch.int64)  # the first bound
        return self.load(StepBatch(header, nothing, (0,)), lambda: nothing, size)

    def _fill(self, layout: _Layout, given: Fields, header: Header) -> None:
        """All that comes before the block tables, padded."""
        arrays, attention = layout.split(self._host), given.attention
        sources = [
            given.token_ids,
            attention.positions,
            given.asked,
            attention.starts,
            attention.context_lens,
            attention.output_starts,
            given.fed_places,
            given.fed_rows,
        ]
        for kv_group in attention.kv_groups:
            sources += (kv_group.slots, kv_group.num_dropped)
        if self._states:
            sources += self._of_states(given)
        for target, source in zip(arrays, sources, strict=True):
            target[: len(source)] = source
            target[len(source) :] = 0
        arrays[3][header.seqs + 1 :] = layout.tokens
        for slots in arrays[_BY_KV_GROUP : _BY_KV_GROUP + 2 * layout.kv_groups : 2]:
            slots[header.tokens :] = -1
        if self._states:
            arrays[-_OF_STATES][header.seqs :] = -1
            arrays[-1][header.left :] = -1

    def _of_states(self, given: Fields) -> list[Tensor]:
        """As ``StateSlots``; nothing of what no sequence has."""
        nothing = given.token_ids[:0]
        states = given.attention.states
        if states is None:
            return [nothing] * _OF_STATES
        return [nothing if one is None else one for one in states]

    def _views(
        self,
        layout: _Layout,
        query_starts: tuple[int, ...],
        header: Header,
        size: StepSize | None,
    ) -> Fields:
        arrays = layout.split(self._device)
        token_ids, positions, asked, bounds, contexts, output_starts, places, rows = arrays[
            :_BY_KV_GROUP
        ]
        states = StateSlots(*arrays[-_OF_STATES:]) if self._states else None
        if states is not None and not header.left and (size is None or size.decodes):
            states = states._replace(left=None)
        by_kv_group = arrays[_BY_KV_GROUP : _BY_KV_GROUP + 2 * layout.kv_groups]
        tables = layout.tables(self._device, self._max_width)
        kv_groups = tuple(
            KVGroupTables(slots, table, dropped, sink_blocks)
            for slots, dropped, table, sink_blocks in zip(
                by_kv_group[::2], by_kv_group[1::2], tables, self._sink_blocks, strict=True
            )
        )
        attention = AttentionBatch(
            positions,
            query_starts,
            contexts,
            output_starts,
            kv_groups,
            self._block_size,
            bounds,
            None if size is None else size.most,
            states=states,
        )
        fed = places[: header.fed], rows[: header.fed]
        return Fields(token_ids, attention, asked[: header.asked], *fed, token_ids[:0])
