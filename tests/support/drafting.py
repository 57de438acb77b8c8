"""Drafters for tests: they know the text beforehand, and are right as often as they are told to."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from quire.engine import Engine
from quire.scheduling import Step


class Drafting:
    """Proposes drafts for an engine's sequences before each of its steps.

    truth: every output's tokens, by request. right: the share of drafts that are right.
    vocab_size: of the others.
    """

    def __init__(
        self,
        engine: Engine,
        truth: Mapping[str, Sequence[Sequence[int]]],
        right: float,
        vocab_size: int,
        seed: int = 0,
    ) -> None:
        self._engine = engine
        self._truth = truth
        self._right = right
        self._vocab_size = vocab_size
        self._rng = random.Random(seed)
        self.num_drafts = 0  # that steps have been given
        self._schedule = engine.scheduler.schedule
        engine.scheduler.schedule = self.schedule  # type: ignore[method-assign]

    def schedule(self, now: float) -> Step:
        rng, scheduler = self._rng, self._engine.scheduler
        for group in scheduler.running:
            if group.beams is not None:
                continue
            for branch in group.branches:
                rest = self._truth[group.request.request_id][branch.index]
                drafts = list(rest[branch.num_output_tokens :][: rng.randint(0, 7)])
                if rng.random() > self._right:
                    wrong = rng.randint(0, 3)
                    drafts[wrong:] = [rng.randrange(self._vocab_size) for _ in range(4)]
                scheduler.propose(branch.seq_id, drafts)
        step = self._schedule(now)
        self.num_drafts += sum(len(chunk.drafts) for chunk in step.chunks)
        return step
