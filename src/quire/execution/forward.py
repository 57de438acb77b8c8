"""What one rank computes: the forward pass over a step's batch, and where it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from quire.core.memory import BlockMove
from quire.execution.adapters import StepAdapters
from quire.execution.batch import StepBatch
from quire.kernels.adapters import AdaptedRows
from quire.kernels.layer_memory import LayerMemory
from quire.kernels.ops import Kernels, Texts
from quire.models.base import Model

Sampled = Callable[[], Tensor]
"""[R] int64, the tokens of the step before, where they were sampled; to be asked for last, once all
else is ready."""


def nothing_sampled() -> Tensor:
    """The sampled tokens for a batch that lacks none."""
    return torch.zeros(0, dtype=torch.int64)


class OtherHead(NamedTuple):
    """Which of the given states have logits by another head than the model's."""

    places: Tensor  # [n]
    logits: Callable[[Tensor], Tensor]


class Hidden(NamedTuple):
    """What a model made of a step's tokens, after its final norm."""

    states: Tensor  # [T or more, d], the chunks' tokens in order
    asked: Tensor  # [R, d], the rows that were asked for
    asked_heads: Sequence[OtherHead] = ()
    adapted: Sequence[AdaptedRows] = ()

    def heads(self, rows: Sequence[int]) -> list[OtherHead]:
        """The heads other than the model's by which logits are made of these rows of the states."""
        return _heads(self.adapted, rows)


def _heads(adapted: Sequence[AdaptedRows], rows: Sequence[int]) -> list[OtherHead]:
    found = []
    for ranges, _, tables in adapted:
        if tables.logits is not None:
            own = (any(first <= row < last for first, last in ranges) for row in rows)
            places = [place for place, is_own in enumerate(own) if is_own]
            if places:
                found.append(OtherHead(torch.tensor(places), tables.logits))
    return found


def asked_of(states: Tensor, batch: StepBatch, asked: Tensor) -> Tensor:
    """``states[asked]``, without a copy where they are the first ones."""
    header = batch.header
    if header.tokens == header.seqs == header.asked:
        return states[: header.asked]
    return states[asked]


class Forward(Protocol):
    """Runs a model over chunks whose blocks are in place."""

    def __call__(self, batch: StepBatch, sampled: Sampled) -> Hidden:
        """The states of all tokens, and of the rows that the batch asks for once more."""
        ...

    def go_on(self, texts: Texts, vocab_size: int) -> Tensor | None: ...


class DirectForward:
    """A ``Forward``. Computes where the batch is, in main memory."""

    def __init__(
        self,
        model: Model,
        layers: Sequence[LayerMemory],
        kernels: Kernels,
        adapters: StepAdapters | None = None,
    ) -> None:
        self._model = model
        self._adapters = adapters
        self._layers = layers
        self._kernels = kernels

    def __call__(self, batch: StepBatch, sampled: Sampled) -> Hidden:
        fields = batch.fields()
        if batch.header.fed:
            fields.token_ids[fields.fed_places] = sampled()[fields.fed_rows]
        attention = fields.attention
        if batch.header.adapted and self._adapters is not None:
            adapted = self._adapters.rows(fields.adapters, batch.query_starts)
            attention = replace(attention, adapted=adapted)
        states = self._model.forward(fields.token_ids, attention, self._layers, self._kernels)
        asked = asked_of(states, batch, fields.asked)
        heads = _heads(attention.adapted, fields.asked.tolist()) if attention.adapted else ()
        return Hidden(states, asked, heads, attention.adapted)

    def go_on(self, texts: Texts, vocab_size: int) -> Tensor | None:
        return self._model.go_on(texts, self._layers, self._kernels, vocab_size)


class BlockStore(Protocol):
    """The pool's tensors and their moves."""

    block_size: int

    @property
    def layers(self) -> Sequence[LayerMemory]: ...

    def move(self, moves: Sequence[BlockMove]) -> list[BlockMove]:
        """Carry out moves as if in their order; return those that failed."""
        ...


class Worker:
    """Computes steps. It has no scheduler, no sampler and no block table: it does as it is told.

    All that it is given is the same for every rank, and could be sent to others. It is called in
    inference mode.
    """

    def __init__(
        self, model: Model, kv_cache: BlockStore, forward: Forward, kernels: Kernels
    ) -> None:
        self.model = model
        self.kernels = kernels
        self.block_size = kv_cache.block_size
        self._kv_cache = kv_cache
        self._forward = forward

    def move(self, moves: Sequence[BlockMove]) -> list[BlockMove]:
        """Carry out block moves as if in their order; return those that failed."""
        return self._kv_cache.move(moves)

    def compute(self, batch: StepBatch, sampled: Sampled) -> Hidden:
        """The forward pass of a step whose moves have been carried out.

        sampled: the tokens of the step before, for those that the batch lacks.
        """
        return self._forward(batch, sampled)

    def go_on(self, texts: Texts, vocab_size: int) -> Tensor | None:
        return self._forward.go_on(texts, vocab_size)

    def logits(self, states: Tensor, heads: Sequence[OtherHead] = ()) -> Tensor:
        """Logits, float32 [R, V], of ``states`` [R, d]. heads: other heads for some of the rows."""
        logits = self.model.logits(states)
        for places, own in heads:
            logits[places] = own(states[places])
        return logits
