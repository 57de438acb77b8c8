"""A Step becomes tokens: moves, one forward pass over the mixed batch, sampling."""

from __future__ import annotations

from itertools import accumulate

import torch

from quire.execution.choosing import Choosing
from quire.execution.forward import NOT_FED, BlockStore, Forward
from quire.execution.past import Pasts
from quire.kernels.ops import Kernels
from quire.model import Model
from quire.scheduling import PendingStep, Roster, Step, StepResult


class ModelExecutor:
    """Executes steps with a model and the pool that holds its keys and values.

    What steps read and write is ordered by the stream on which all of them are launched. Where the
    calling thread computes, a step is done when ``submit`` returns.
    """

    def __init__(
        self, model: Model, kv_cache: BlockStore, forward: Forward, kernels: Kernels
    ) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._forward = forward
        self._kernels = kernels
        self._roster = Roster()
        self.pasts = Pasts()
        self._last: Choosing | None = None

    @torch.inference_mode()
    def submit(self, step: Step) -> PendingStep:
        """See ``Executor``."""
        known, pasts = self._roster.follow(step), self.pasts.follow(step)
        last, self._last = self._last, None
        failed_moves = self._kv_cache.move(step.moves)
        bounds = [0, *accumulate(len(chunk.token_ids) for chunk in step.chunks)]
        rows: list[int] = []
        for chunk, end in zip(step.chunks, bounds[1:], strict=True):
            if chunk.readout is not None:
                rows += range(end - chunk.readout.rows, end)
        fed = NOT_FED
        if step.ahead and last is not None:
            fed = last.feed(step.chunks, bounds)
            if not fed.places:
                last.choose()  # from what this forward pass overwrites
        hidden = self._forward(step.chunks, rows, fed) if step.chunks else None
        before = last if fed.places else None
        choosing = Choosing(step.chunks, known, pasts, hidden, self._model, self._kernels, before)
        choosing.begin()
        self._last = choosing
        return PendingStep(step, lambda: StepResult(choosing.outcomes(), failed_moves))
