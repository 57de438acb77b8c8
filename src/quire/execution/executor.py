"""A Step becomes tokens: moves, one forward pass over the mixed batch, sampling."""

from __future__ import annotations

from itertools import accumulate

import torch

from quire.execution.forward import NOT_FED, BlockStore, Forward
from quire.execution.submitted import SubmittedStep
from quire.kernels.ops import Kernels
from quire.model import Model
from quire.scheduling import Step, StepResult


class ModelExecutor:
    """Executes steps with a model and the pool that holds its keys and values.

    A ``PipelinedExecutor``: what steps read and write is ordered by the stream on which all of
    them are launched. Where the calling thread computes, ``submit`` returns when that is done.
    """

    def __init__(
        self, model: Model, kv_cache: BlockStore, forward: Forward, kernels: Kernels
    ) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._forward = forward
        self._kernels = kernels
        self._last: SubmittedStep | None = None

    def execute(self, step: Step) -> StepResult:
        """See ``Executor``."""
        return self._compute(step).collect()

    def submit(self, step: Step) -> SubmittedStep:
        """See ``PipelinedExecutor``."""
        submitted = self._compute(step)
        submitted.begin_choosing()
        return submitted

    @torch.inference_mode()
    def _compute(self, step: Step) -> SubmittedStep:
        last, self._last = self._last, None
        failed_moves = self._kv_cache.move(step.moves)
        bounds = [0, *accumulate(len(chunk.token_ids) for chunk in step.chunks)]
        rows = [
            end - 1
            for chunk, end in zip(step.chunks, bounds[1:], strict=True)
            if chunk.num_samples or chunk.num_candidates
        ]
        fed = NOT_FED
        if step.ahead and last is not None:
            fed = last.feed(step.chunks, bounds)
            if not fed.places:
                last.choose()  # from what this forward pass overwrites
        hidden = self._forward(step.chunks, rows, fed) if step.chunks else None
        result = StepResult({}, failed_moves=failed_moves)
        before = last if fed.places else None
        self._last = SubmittedStep(step.chunks, hidden, result, self._model, self._kernels, before)
        return self._last
