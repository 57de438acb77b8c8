"""A layer with a state behind a model's own: sums of what it has seen, which fade."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from quire.engine.assembly import engine
from quire.kernels.layer_memory import KVShape, StateShape
from quire.kernels.ops import AttentionBatch, Kernels, Texts
from quire.models.base import Model

_KEPT = 3  # vectors that it still sees, beside the sums
_WIDTH = 16  # numbers of each
_DECAY = 0.75


class DecayingModel:
    """A model whose states are added to what they have seen before, token by token.

    So the order of sums depends on positions alone; and a state of another text, or of another
    position of the same, gives other tokens.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        shapes = (*model.kv_shapes, StateShape((_WIDTH, _KEPT), (2, _WIDTH), _WIDTH))
        self.kv_shapes: Sequence[KVShape | StateShape] = shapes
        self.windows = (*model.windows, None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(
        self, token_ids: Tensor, batch: AttentionBatch, kv: Sequence[Any], kernels: Kernels
    ) -> Tensor:
        hidden = self._model.forward(token_ids, batch, kv[:-1], kernels)
        assert batch.states is not None
        seen, starts = hidden[:, :_WIDTH].float(), batch.query_starts
        added = torch.empty_like(seen)
        for number, (slot, confirmed, drafts) in enumerate(batch.states.of_sequences):
            own = kv[-1].rows[slot], kv[-1].state[slot]
            if int(batch.positions[starts[number]]) == 0:
                for part in own:
                    part.zero_()
            for before in kv[-1].inputs[slot, :confirmed]:
                _see(before, *own)
            known = starts[number + 1] - drafts
            for row in range(starts[number], known):
                added[row] = _see(seen[row], *own)
                left = -1 if batch.states.left is None else int(batch.states.left[row])
                if left >= 0:
                    kv[-1].rows[left], kv[-1].state[left] = own
            kv[-1].inputs[slot, :drafts] = seen[known : known + drafts]
            own = own[0].clone(), own[1].clone()
            for row in range(known, known + drafts):
                added[row] = _see(seen[row], *own)
        hidden[:, :_WIDTH] += added.to(hidden.dtype)
        return hidden

    def go_on(
        self, texts: Texts, kv: Sequence[Any], kernels: Kernels, vocab_size: int
    ) -> Tensor | None:
        return None


def _see(vector: Tensor, rows: Tensor, sums: Tensor) -> Tensor:
    """What a token that is this vector finds, and leaves."""
    sums[0].mul_(_DECAY).add_(vector)
    sums[1].mul_(_DECAY / 2).add_(rows[:, 0])
    found = sums[0] - sums[1] + rows[:, -1]
    rows.copy_(torch.cat((rows[:, 1:], vector[:, None]), 1))
    return found


def serve_decaying(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let engines load every model with such a layer behind its own."""
    load = engine.load
    monkeypatch.setattr(engine, "load", lambda *args: DecayingModel(load(*args)))
