"""A fake device that computes by itself: steps are done when it gets to them, in their order."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from quire.scheduling import IN_FLIGHT, Chunk, Step, StepResult
from support.fake_model import FakeExecutor


class FakePipeline:
    """``FakeExecutor`` behind a queue, as launches on a stream are.

    What is queued is done at a random time before its result is asked for, one after the other.
    ``late_writes``: what a step writes arrives once more after the next step, as no device may do.
    """

    def __init__(
        self, executor: FakeExecutor, rng: random.Random, *, late_writes: bool = False
    ) -> None:
        self.executor = executor
        self._rng = rng
        self._late_writes = late_writes
        self._last_chunks: list[Chunk] = []
        self._queue: deque[Callable[[], None]] = deque()
        self._sampled: dict[int, int] = {}  # by the step before
        self.fail: Callable[[str], None] = lambda what: None  # told "submit" and "collect"
        self.log: list[str] = []  # what has been called
        self.num_ahead = 0  # steps that were planned ahead

    def execute(self, step: Step) -> StepResult:
        return self.submit(step).collect()

    def submit(self, step: Step) -> FakeFlight:
        self.log.append("submit")
        self.fail("submit")
        self.num_ahead += step.ahead
        flight = FakeFlight(self, step)
        self.enqueue(flight.compute)
        self.proceed()
        return flight

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

    def compute(self, step: Step) -> StepResult:
        """What the device does when it comes to a step."""
        chunks = [self._with_token(chunk) for chunk in step.chunks]
        result = self.executor.execute(replace(step, chunks=chunks))
        if self._late_writes:
            self.executor.execute(Step([], self._last_chunks, []))
            self._last_chunks = chunks
        self._sampled = {i: s[0].token_id for i, s in result.samples.items() if len(s) == 1}
        return result

    def _with_token(self, chunk: Chunk) -> Chunk:
        if chunk.token_ids != [IN_FLIGHT]:
            assert IN_FLIGHT not in chunk.token_ids
            return chunk
        return chunk._replace(token_ids=[self._sampled[chunk.seq_id]])


class FakeFlight:
    """A step in the queue of a ``FakePipeline``."""

    def __init__(self, pipeline: FakePipeline, step: Step) -> None:
        self._pipeline = pipeline
        self._step = step
        self._result: StepResult | None = None

    def compute(self) -> None:
        self._result = self._pipeline.compute(self._step)

    def collect(self) -> StepResult:
        while self._result is None:
            self._pipeline.do_next()
        self._pipeline.log.append("collect")
        self._pipeline.fail("collect")
        return self._result
