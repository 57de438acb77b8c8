"""What one rank is: weights, a pool of their keys and values, and a forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from quire.core.memory import BlockMove
from quire.execution.batch import StepBatch
from quire.execution.forward import Forward, Hidden, Sampled
from quire.kernels.ops import Kernels, LayerKV, Texts
from quire.models.base import Model


class BlockStore(Protocol):
    """The pool's tensors and their moves."""

    block_size: int

    @property
    def layers(self) -> Sequence[LayerKV]: ...

    def move(self, moves: Sequence[BlockMove]) -> list[BlockMove]:
        """Carry out moves as if in their order; those that failed."""
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
        """Carry out block moves as if in their order; those that failed."""
        return self._kv_cache.move(moves)

    def compute(self, batch: StepBatch, sampled: Sampled) -> Hidden:
        """The forward pass of a step whose moves have been carried out.

        sampled: the tokens of the step before, for those that the batch lacks.
        """
        return self._forward(batch, sampled)

    def go_on(self, texts: Texts, vocab_size: int) -> Tensor | None:
        """See ``Model.go_on``."""
        return self._forward.go_on(texts, vocab_size)

    def logits(self, states: Tensor) -> Tensor:
        """float32 [R, V] of ``states`` [R, d]."""
        return self.model.logits(states)
