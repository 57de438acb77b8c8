"""An executor for whole-server tests: texts that depend on memory, or texts written in advance.

A test may hold its steps, and make them fail.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from quire.core.protocol import (
    Chunk,
    Outcome,
    PendingStep,
    Request,
    Roster,
    Sample,
    Step,
    TokenLogprobs,
    confirmed,
)
from support.fake_model import FakeExecutor

_PATIENCE = 120.0  # seconds; a step that is held longer would hang the engine's thread


class ScriptedExecutor:
    """FakeExecutor's tokens as words of some vocabulary, or the tokens of ``script``.

    script: the tokens of every output, whatever its prompt; None: words chosen by the KV cache.
    author: writes the tokens of each request's output, where no script is the same for all.
    fail: called before each step; what it raises is the step's failure.
    """

    def __init__(self, fake: FakeExecutor, words: Sequence[int]) -> None:
        self._fake = fake
        self._words = words
        self._may_step = threading.Semaphore(0)
        self.held = False
        self.script: Sequence[int] | None = None
        self.author: Callable[[Request], Sequence[int] | None] = lambda request: self.script
        self.fail: Callable[[Step], None] = lambda step: None
        self.num_steps = 0

    def hold(self) -> None:
        """From now on every step waits for ``let`` or ``release``."""
        while self._may_step.acquire(blocking=False):  # what ``release`` has left over
            pass
        self.held = True

    @property
    def is_let(self) -> bool:
        """Whether it may take a step that it has not begun."""
        return self._may_step._value > 0

    def let(self, steps: int) -> None:
        for _ in range(steps):
            self._may_step.release()

    def release(self) -> None:
        self.held = False
        self._may_step.release()

    def forget(self) -> None:
        """No sequence lives any more that steps have told of."""
        self._fake.roster = Roster()

    def submit(self, step: Step) -> PendingStep:
        """See ``Executor``."""
        known = self._fake.roster.follow(step)
        if self.held:
            assert self._may_step.acquire(timeout=_PATIENCE), "nobody released the executor"
        self.fail(step)
        self.num_steps += 1
        result = self._fake.compute(step, known)
        for chunk, whose in zip(step.chunks, known, strict=True):
            outcome = self._outcome(
                whose.request, chunk, result.outcomes.get(chunk.seq_id, Outcome())
            )
            result.outcomes[chunk.seq_id] = outcome
        return PendingStep(step, lambda: result)

    def _outcome(self, request: Request, chunk: Chunk, raw: Outcome) -> Outcome:
        if raw.vector is not None or raw.candidates:
            return raw
        if chunk.drafts:
            return Outcome(confirmed(self._verified(request, chunk), chunk.drafts))
        tokens, forks = (
            [self._sample(request, chunk, sample.token_id) for sample in samples]
            for samples in (raw.tokens, raw.forks)
        )
        count = request.params.prompt_logprobs
        if count is None:
            return Outcome(tokens, forks)
        known = request.prompt_token_ids
        next_tokens = known[chunk.start + 1 : chunk.start + 1 + len(chunk.token_ids)]
        return Outcome(
            tokens, forks, prompt_logprobs=[self._logprobs(t, count) for t in next_tokens]
        )

    def _verified(self, request: Request, chunk: Chunk) -> list[Sample | None]:
        """What the script has after each of the rows that are read out; None after its end."""
        script = self.author(request)
        assert script is not None, "only a script is drafted for"
        last, count = len(chunk.token_ids), len(chunk.drafts)
        cut = [chunk._replace(token_ids=chunk.token_ids[:n]) for n in range(last - count, last + 1)]
        left = len(script) - chunk.start + chunk.output_start
        return [self._sample(request, one, 0) if len(one.token_ids) < left else None for one in cut]

    def _sample(self, request: Request, chunk: Chunk, raw: int) -> Sample:
        token_id = self._words[raw % len(self._words)]
        script = self.author(request)
        if script is not None:
            position = chunk.start + len(chunk.token_ids) - chunk.output_start
            token_id = script[position]
        count = request.params.logprobs
        return Sample(token_id, None if count is None else self._logprobs(token_id, count))

    def _logprobs(self, token_id: int, count: int) -> TokenLogprobs:
        """The token is always the third likeliest, after two other words."""
        others = [word for word in self._words if word != token_id]
        ranked = [*others[:2], token_id, *others[2:]]
        top = tuple((word, -float(rank)) for rank, word in enumerate(ranked[:count], 1))
        return TokenLogprobs(-3.0, 3, top)
