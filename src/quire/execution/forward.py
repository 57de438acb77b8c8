"""One forward pass over a step's chunks: where it runs and how its batch gets there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from quire.execution.batch import build_batch
from quire.kernels.ops import Kernels, LayerKV
from quire.memory import BlockMove
from quire.model import Model
from quire.scheduling import Chunk


class Hidden(NamedTuple):
    """What a model made of a step's tokens, after its final norm."""

    states: Tensor  # [T or more, d], the chunks' tokens in order
    asked: Tensor  # [R, d], the rows that were asked for


class Fed(NamedTuple):
    """Tokens of a batch that only the device knows: it has sampled them in the step before."""

    places: Sequence[int]  # among the batch's tokens
    rows: Sequence[int]  # of ``sampled``, one for each place
    sampled: Callable[[], Tensor]  # [R] int64; to be asked for last, once all else is ready


NOT_FED = Fed((), (), lambda: torch.zeros(0, dtype=torch.int64))


def asked_of(states: Tensor, rows: Sequence[int], places: Callable[[], Tensor]) -> Tensor:
    """``states[rows]``, without a copy where they are the first ones; ``places``: as a tensor."""
    if list(rows) == list(range(len(rows))):
        return states[: len(rows)]
    return states[places()]


class Forward(Protocol):
    """Runs a model over chunks whose blocks are in place."""

    def __call__(self, chunks: Sequence[Chunk], rows: Sequence[int], fed: Fed = NOT_FED) -> Hidden:
        """The states of all tokens, and of ``rows`` among them once more."""
        ...


class BlockStore(Protocol):
    """The pool's tensors and their moves."""

    block_size: int

    @property
    def layers(self) -> Sequence[LayerKV]: ...

    def move(self, moves: Sequence[BlockMove]) -> list[BlockMove]:
        """Carry out moves as if in their order; those that failed."""
        ...


class DirectForward:
    """Builds a step's batch in main memory and computes there."""

    def __init__(self, model: Model, kv_cache: BlockStore, kernels: Kernels) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._kernels = kernels

    def __call__(self, chunks: Sequence[Chunk], rows: Sequence[int], fed: Fed = NOT_FED) -> Hidden:
        """See ``Forward``."""
        token_ids, batch = build_batch(chunks, self._kv_cache.block_size)
        if fed.places:
            token_ids[list(fed.places)] = fed.sampled()[list(fed.rows)]
        states = self._model.forward(token_ids, batch, self._kv_cache.layers, self._kernels)
        return Hidden(states, asked_of(states, rows, lambda: torch.tensor(rows)))
