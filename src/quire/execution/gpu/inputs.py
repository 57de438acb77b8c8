"""A step's batch in one buffer on the device, brought there by one copy.

Where each array begins depends only on the numbers of tokens and sequences, so that launches that
were recorded for these numbers find the next batch where the last one was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from quire.execution.forward import NOT_FED, Fed
from quire.kernels.ops import AttentionBatch, LaneTables


class Inputs(NamedTuple):
    """Views of the buffer on the device."""

    token_ids: Tensor  # [T] int64
    batch: AttentionBatch
    asked: Tensor  # [R] int64, rows of tokens


_BY_LANE = 8  # arrays before those of the lanes


class _Layout(NamedTuple):
    """The buffer for T tokens of S sequences in L lanes, in elements."""

    tokens: int
    seqs: int
    lanes: int

    @property
    def lengths(self) -> list[int]:
        """Of the arrays before the block tables, in their order."""
        by_lane = [self.tokens, self.seqs] * self.lanes  # slots, num_dropped
        return [self.tokens] * 2 + [self.seqs + 1] + [self.seqs] * 5 + by_lane

    def split(self, buffer: Tensor) -> list[Tensor]:
        """token_ids, positions, bounds, context_lens, prompt_lens, asked, the places and the rows
        of fed tokens, then those by lane."""
        return list(torch.split(buffer[: sum(self.lengths)], self.lengths))

    def tables(self, buffer: Tensor, width: int) -> list[Tensor]:
        """By lane, [S, width]. Columns are side by side, so the first ones are a piece."""
        start, step = sum(self.lengths), self.lanes * self.seqs
        return [
            buffer.as_strided((self.seqs, width), (1, step), start + lane * self.seqs)
            for lane in range(self.lanes)
        ]

    def size(self, width: int) -> int:
        return sum(self.lengths) + self.lanes * self.seqs * width


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
    ) -> None:
        """For batches of up to ``max_tokens`` tokens of ``max_seqs`` sequences.

        max_width: most blocks that one of them reads in a lane.
        sink_blocks: ``LaneTables.num_sink_blocks`` of each lane.
        """
        on_gpu = device.type == "cuda"
        size = _Layout(max_tokens, max_seqs, len(sink_blocks)).size(max_width)
        self._host = torch.zeros(size, dtype=torch.int64, pin_memory=on_gpu)
        self._device = torch.zeros(size, dtype=torch.int64, device=device)
        self._copied: torch.cuda.Event | None = None
        if on_gpu:
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._max_width = max_width
        self._sink_blocks = list(sink_blocks)
        self._block_size = block_size

    def load(
        self,
        token_ids: Tensor,
        batch: AttentionBatch,
        rows: Sequence[int],
        num_seqs: int | None = None,
        fed: Fed = NOT_FED,
    ) -> Inputs:
        """Bring a batch from main memory to the device, and there give it what it is fed.

        ``num_seqs``: pad a batch of single tokens to so many sequences. Those that pad it have no
        tokens in the pool, and their new one goes nowhere.
        """
        assert [lane.num_sink_blocks for lane in batch.lanes] == self._sink_blocks
        if self._copied is not None:
            self._copied.synchronize()  # the last batch may not have left main memory yet
        real_seqs, real_tokens = len(batch.context_lens), len(token_ids)
        seqs = real_seqs if num_seqs is None else num_seqs
        layout = _Layout(real_tokens + seqs - real_seqs, seqs, len(self._sink_blocks))
        arrays = layout.split(self._host)
        given = [
            token_ids,
            batch.positions,
            torch.tensor(batch.query_starts),
            batch.context_lens,
            batch.prompt_lens,
            *(torch.tensor(list(n), dtype=torch.int64) for n in (rows, fed.places, fed.rows)),
        ]
        for lane in batch.lanes:
            given += (lane.slots, lane.num_dropped)
        for target, source in zip(arrays, given, strict=True):
            target[: len(source)] = source
            target[len(source) :] = 0
        if seqs > real_seqs:
            arrays[2][real_seqs:] = torch.arange(real_tokens, layout.tokens + 1)
            for slots in arrays[_BY_LANE::2]:
                slots[real_tokens:] = -1
        # Beyond what is read there may be blocks for tokens to come.
        width = min(self._max_width, max(lane.block_tables.shape[1] for lane in batch.lanes))
        for table, lane in zip(layout.tables(self._host, width), batch.lanes, strict=True):
            given_columns = lane.block_tables[:, :width]
            table[:real_seqs, : given_columns.shape[1]] = given_columns
        used = layout.size(width)
        self._device[:used].copy_(self._host[:used], non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        bounds = batch.query_starts + tuple(range(real_tokens + 1, layout.tokens + 1))
        inputs = self._views(layout, bounds, len(rows))
        if fed.places:
            places, sources = layout.split(self._device)[_BY_LANE - 2 : _BY_LANE]
            tokens = fed.sampled()[sources[: len(fed.rows)]]
            inputs.token_ids.index_copy_(0, places[: len(fed.places)], tokens)
        return inputs

    def load_idle(self, num_seqs: int) -> Inputs:
        """A batch of single tokens that do nothing."""
        none = torch.zeros(0, dtype=torch.int64)
        lanes = tuple(LaneTables(none, none.view(0, 0), none, sinks) for sinks in self._sink_blocks)
        batch = AttentionBatch(none, (0,), none, none, lanes, self._block_size)
        return self.load(none, batch, (), num_seqs)

    def _views(self, layout: _Layout, bounds: tuple[int, ...], num_asked: int) -> Inputs:
        arrays = layout.split(self._device)
        token_ids, positions, starts, contexts, prompts, asked = arrays[: _BY_LANE - 2]
        by_lane = arrays[_BY_LANE:]
        tables = layout.tables(self._device, self._max_width)
        lanes = tuple(
            LaneTables(slots, table, dropped, sink_blocks)
            for slots, dropped, table, sink_blocks in zip(
                by_lane[::2], by_lane[1::2], tables, self._sink_blocks, strict=True
            )
        )
        batch = AttentionBatch(
            positions, bounds, contexts, prompts, lanes, self._block_size, starts
        )
        return Inputs(token_ids, batch, asked[:num_asked])
