"""A Step becomes tokens: moves, one forward pass over the mixed batch, sampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from quire.core.memory import BlockMove
from quire.core.protocol import (
    Chunk,
    Opened,
    Outcome,
    Parts,
    PendingStep,
    Roster,
    Step,
    StepResult,
)
from quire.execution.adapters import StepAdapters
from quire.execution.batch import pack
from quire.execution.forward import Worker, nothing_sampled
from quire.execution.pooling import Pools
from quire.execution.prompt_vectors import given_rows
from quire.execution.sampling.choosing import Choosing
from quire.execution.sampling.past import Past, Pasts
from quire.text.params import params_of


class StepDrafts(Protocol):
    """Makes the drafts that steps leave to it, in each step before the target computes it."""

    def forget(self) -> None:
        """Forget all sequences."""
        ...

    def catch_up(self, step: Step) -> None:
        """Compute what was put off; called before a step moves blocks."""
        ...

    def fill(
        self, chunks: Sequence[Chunk], known: Sequence[Opened], pasts: Mapping[int, Past]
    ) -> Sequence[Chunk]:
        """A step's chunks with drafts in the places of those that are TO_DRAFT, or without them."""
        ...

    def observe(self, chunks: Sequence[Chunk], outcomes: Mapping[int, Outcome]) -> None:
        """Learn what came of the chunks that ``fill`` gave."""
        ...


class ModelExecutor:
    """An ``Executor``: has a worker compute steps, and chooses their tokens.

    What steps read and write is ordered by the stream on which all of them are launched. Where the
    calling thread computes, a step is done when ``submit`` returns.
    """

    def __init__(
        self,
        worker: Worker,
        draft_model: StepDrafts | None = None,
        adapters: StepAdapters | None = None,
    ) -> None:
        """draft_model: for the drafts that steps leave to it; where the calling thread computes.

        adapters: the worker's, if it has any.
        """
        self.worker = worker
        self.adapters = adapters
        self._draft_model = draft_model
        self.pools = Pools()
        self.parts = Parts()  # on a device that computes by itself: how long it takes to launch
        self.tell_forced = False  # whether outcomes say what a grammar leaves no choice about
        self.forget()

    def forget(self) -> None:
        """Forget all sequences."""
        self._roster, self.pasts = Roster(), Pasts()
        self._last: Choosing | None = None
        self._has_vectors = False  # whether a prompt has had some
        self.pools.forget()
        if self._draft_model is not None:
            self._draft_model.forget()

    @torch.inference_mode()
    def submit(self, step: Step) -> PendingStep:
        known, pasts = self._roster.follow(step), self.pasts.known
        if pasts or (step.opened and _looks_back(step)):
            self.pasts.follow(step)
        last, self._last = self._last, None
        draft_model = self._draft_model
        chunks: Sequence[Chunk] = step.chunks
        if draft_model is not None:
            with self.parts["draft"]:
                draft_model.catch_up(step)
        failed_moves: list[BlockMove] = []
        if step.moves:
            with self.parts["moves"]:
                failed_moves = self.worker.move(step.moves)
        if not chunks:
            self.pools.drop(step.closed)
            return PendingStep(step, lambda: StepResult({}, failed_moves))
        if draft_model is not None:
            with self.parts["draft"]:
                chunks = draft_model.fill(chunks, known, pasts)
        bounds, asked, end = [0], list[int](), 0
        for chunk in chunks:
            end += len(chunk.token_ids)
            bounds.append(end)
            if chunk.readout is not None:  # no row, where nothing is sampled
                asked += range(end - chunk.readout.rows, end)
        before = last if step.ahead else None
        places, rows = ([], []) if before is None else before.feed(chunks, bounds)
        if before is not None and not places:
            before.choose()  # from what this forward pass overwrites
        numbers = [] if self.adapters is None else self.adapters.numbers(known)
        batch = pack(chunks, self.worker.block_size, asked, places, rows, numbers)
        if step.opened and not self._has_vectors:
            self._has_vectors = any(opened.request.spans for opened in step.opened)
        if self._has_vectors:
            batch = batch._replace(given=given_rows(chunks, known))
        beside = known, pasts, self.pools, before
        choosing = Choosing(self.worker, chunks, *beside, tell_forced=self.tell_forced)
        choosing.ask_guides()
        with self.parts["forward"]:
            sampled = nothing_sampled if before is None else before.tokens
            hidden = self.worker.compute(batch, sampled)
        if self.pools.kept:
            self.pools.drop(step.closed)  # which the step before may have pooled
        with self.parts["sampling"]:
            choosing.begin(hidden)
        self._last = choosing

        def result() -> StepResult:
            with self.parts["sampling"]:
                outcomes = choosing.outcomes()
            if draft_model is not None:
                draft_model.observe(chunks, outcomes)
            return StepResult(outcomes, failed_moves, choosing.delays)

        return PendingStep(step, result)


def _looks_back(step: Step) -> bool:
    """Whether the step opens a sequence whose parameters look at earlier tokens."""
    return any(params_of(opened.request).needs_history for opened in step.opened)
