"""Runs a model over block tables without an engine: batches are made by hand."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from quire.kernels.adapters import AdaptedRows, Updates
from quire.kernels.dispatch import choose_kernels
from quire.kernels.layer_memory import KVShape, LayerKV, LayerMemory, LayerState, StateShape
from quire.kernels.ops import AttentionBatch, KVGroupTables, StateSlots
from quire.models.adaptable import num_layers
from quire.models.base import Model


@dataclass
class _Sequence:
    prompt_len: int
    table: list[int] = field(default_factory=list)
    length: int = 0
    slot: int = 0  # of its states


def make_batch(
    sequences: Sequence[_Sequence], new_tokens: Sequence[int], block_size: int
) -> AttentionBatch:
    """The batch in which sequence i takes its next ``new_tokens[i]`` tokens; tables cover them."""
    starts, positions, slots = [0], [], []
    for sequence, count in zip(sequences, new_tokens, strict=True):
        starts.append(starts[-1] + count)
        for position in range(sequence.length, sequence.length + count):
            positions.append(position)
            block = sequence.table[position // block_size]
            slots.append(block * block_size + position % block_size)
    widest = max(len(sequence.table) for sequence in sequences)
    return AttentionBatch(
        positions=torch.tensor(positions),
        query_starts=tuple(starts),
        context_lens=torch.tensor(
            [s.length + n for s, n in zip(sequences, new_tokens, strict=True)]
        ),
        output_starts=torch.tensor([s.prompt_len for s in sequences]),
        kv_groups=(
            KVGroupTables(
                torch.tensor(slots),
                torch.tensor([s.table + [0] * (widest - len(s.table)) for s in sequences]),
                torch.zeros(len(sequences), dtype=torch.long),
            ),
        ),
        block_size=block_size,
        states=StateSlots(torch.tensor([sequence.slot for sequence in sequences])),
    )


def poisoned(
    shape: KVShape | StateShape, num_blocks: int, block_size: int, dtype: torch.dtype
) -> LayerMemory:
    """Memory of a layer that nobody may read before it is written."""
    if isinstance(shape, StateShape):
        sizes: tuple[tuple[int, ...], ...] = (shape.rows, shape.state or (0,), (0, 0))
        return LayerState(*(torch.full((num_blocks, *size), torch.nan) for size in sizes))
    tile = (num_blocks, shape.num_kv_heads, block_size)
    return LayerKV.of(shape, lambda width: torch.full((*tile, width), torch.nan, dtype=dtype))


class PagedHarness:
    """A pool poisoned with NaN, block ids in random order, and the sequences that use them."""

    def __init__(
        self,
        model: Model,
        num_blocks: int = 128,
        block_size: int = 4,
        updates: Updates | None = None,
    ) -> None:
        """updates: of an adapter of all sequences."""
        self.model = model
        self.block_size = block_size
        self.kv = [
            poisoned(shape, num_blocks, block_size, model.dtype) for shape in model.kv_shapes
        ]
        self.kernels = choose_kernels(model.dtype)
        self._adapter = None
        if updates is not None:
            self._adapter = self.kernels.keep_adapter(updates, num_layers(model), model.dtype)
        self.sequences: dict[int, _Sequence] = {}
        self.seen: Callable[[Tensor], None] = lambda hidden: None  # the states of each step
        self._free = list(range(num_blocks))
        random.Random(0).shuffle(self._free)

    def add(self, seq_id: int, prompt_len: int) -> None:
        self.sequences[seq_id] = _Sequence(prompt_len, slot=len(self.sequences) + 1)

    def step(self, chunks: Mapping[int, Sequence[int]]) -> dict[int, Tensor]:
        """Run one step: new tokens by sequence -> logits [new tokens, vocab] by sequence."""
        sequences = [self.sequences[seq_id] for seq_id in chunks]
        counts = [len(tokens) for tokens in chunks.values()]
        for sequence, count in zip(sequences, counts, strict=True):
            while len(sequence.table) * self.block_size < sequence.length + count:
                sequence.table.append(self._free.pop())
        batch = make_batch(sequences, counts, self.block_size)
        token_ids = torch.tensor([token for tokens in chunks.values() for token in tokens])
        if self._adapter is not None:
            adapted = AdaptedRows(((0, len(token_ids)),), self._adapter)
            batch = replace(batch, adapted=(adapted,))
        with torch.inference_mode():
            hidden = self.model.forward(token_ids, batch, self.kv, self.kernels)
            self.seen(hidden)
            logits = self.model.logits(hidden)
        for sequence, count in zip(sequences, counts, strict=True):
            sequence.length += count
        return dict(zip(chunks, logits.split(counts), strict=True))

    def prefill(self, prompts: Sequence[Sequence[int]], chunk: int) -> list[Tensor]:
        """Logits [len(prompt), vocab] of each prompt, all at once and ``chunk`` tokens a step."""
        for seq_id, prompt in enumerate(prompts):
            self.add(seq_id, len(prompt))
        parts: list[list[Tensor]] = [[] for _ in prompts]
        for start in range(0, max(map(len, prompts)), chunk):
            chunks = {i: p[start : start + chunk] for i, p in enumerate(prompts) if len(p) > start}
            for seq_id, logits in self.step(chunks).items():
                parts[seq_id].append(logits)
        return [torch.cat(part) for part in parts]

    def states(self, prompts: Sequence[Sequence[int]], chunk: int) -> list[Tensor]:
        """As ``prefill``, what logits are made of."""
        found: list[Tensor] = []
        self.seen = found.append
        self.prefill(prompts, chunk)
        return found

    def generate(self, prompts: Sequence[Sequence[int]], count: int, chunk: int) -> list[list[int]]:
        """``count`` greedy tokens after each prompt."""
        logits = self.prefill(prompts, chunk)
        outputs = [[int(rows[-1].argmax())] for rows in logits]
        for _ in range(count - 1):
            step = self.step({i: [output[-1]] for i, output in enumerate(outputs)})
            for seq_id, rows in step.items():
                outputs[seq_id].append(int(rows[-1].argmax()))
        return outputs
