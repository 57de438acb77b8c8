"""A Step becomes tokens: moves, one forward pass over the mixed batch, sampling."""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor

from quire.execution.batch import pack
from quire.execution.sampling.choosing import Choosing
from quire.execution.sampling.past import Pasts
from quire.execution.worker import Worker
from quire.protocol import PendingStep, Roster, Step, StepResult


class ModelExecutor:
    """Has a worker compute steps, and chooses their tokens.

    What steps read and write is ordered by the stream on which all of them are launched. Where the
    calling thread computes, a step is done when ``submit`` returns.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.pasts = Pasts()
        self.tell_forced = False  # whether outcomes say what a grammar leaves no choice about
        self._roster = Roster()
        self._last: Choosing | None = None

    @torch.inference_mode()
    def submit(self, step: Step) -> PendingStep:
        """See ``Executor``."""
        known, pasts = self._roster.follow(step), self.pasts.follow(step)
        last, self._last = self._last, None
        failed_moves = self.worker.move(step.moves)
        if not step.chunks:
            return PendingStep(step, lambda: StepResult({}, failed_moves))
        bounds = [0, *accumulate(len(chunk.token_ids) for chunk in step.chunks)]
        asked: list[int] = []
        for chunk, end in zip(step.chunks, bounds[1:], strict=True):
            if chunk.readout is not None:
                asked += range(end - chunk.readout.rows, end)
        before = last if step.ahead else None
        places, rows = ([], []) if before is None else before.feed(step.chunks, bounds)
        if before is not None and not places:
            before.choose()  # from what this forward pass overwrites
        batch = pack(step.chunks, self.worker.block_size, asked, places, rows)
        hidden = self.worker.compute(batch, _nothing if before is None else before.tokens)
        choosing = Choosing(
            self.worker, step.chunks, known, pasts, hidden, before, tell_forced=self.tell_forced
        )
        choosing.begin()
        self._last = choosing
        return PendingStep(step, lambda: StepResult(choosing.outcomes(), failed_moves))


def _nothing() -> Tensor:
    return torch.zeros(0, dtype=torch.int64)
