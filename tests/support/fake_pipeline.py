"""A fake device that computes by itself: steps are done when it gets to them, in their order."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from quire.core.protocol import IN_FLIGHT, Chunk, Opened, PendingStep, Step, StepResult
from support.fake_model import FakeExecutor


class FakePipeline:
    """``FakeExecutor`` behind a queue, as launches on a stream are.

    What is queued is done at a random time before its result is asked for, one after the other.
    """

    def __init__(self, executor: FakeExecutor, rng: random.Random) -> None:
        self.executor = executor
        self._rng = rng
        self._queue: deque[Callable[[], None]] = deque()
        self._sampled: dict[int, int] = {}  # by the step before
        self.fail: Callable[[str], None] = lambda what: None  # told "submit" and "collect"
        self.log: list[str] = []  # what has been called
        self.num_ahead = 0  # steps that were planned ahead

    def submit(self, step: Step) -> PendingStep:
        """See ``Executor``."""
        self.log.append("submit")
        known = self.executor.roster.follow(step)
        self.fail("submit")
        self.num_ahead += step.ahead
        results: list[StepResult] = []
        self.enqueue(lambda: results.append(self.compute(step, known)))
        self.proceed()

        def collect() -> StepResult:
            while not results:
                self.do_next()
            self.log.append("collect")
            self.fail("collect")
            return results[0]

        return PendingStep(step, collect)

    def enqueue(self, work: Callable[[], None]) -> None:
        """To be done after what is queued before it."""
        self._queue.append(work)

    def proceed(self) -> None:
        """Time passes: some of the queue is done, or nothing."""
        for _ in range(self._rng.choice([0, 0, 0, 1, len(self._queue)])):
            self.do_next()

    def do_next(self) -> None:
        if self._queue:
            self._queue.popleft()()

    def compute(self, step: Step, known: list[Opened]) -> StepResult:
        """What the device does when it comes to a step."""
        chunks = [self._with_token(chunk) for chunk in step.chunks]
        result = self.executor.compute(replace(step, chunks=chunks), known)
        self._sampled = {i: o.tokens[-1].token_id for i, o in result.outcomes.items() if o.tokens}
        return result

    def _with_token(self, chunk: Chunk) -> Chunk:
        if chunk.token_ids != [IN_FLIGHT]:
            assert IN_FLIGHT not in chunk.token_ids
            return chunk
        return chunk._replace(token_ids=[self._sampled[chunk.seq_id]])
