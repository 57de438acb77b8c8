"""The real engine, with a note of what each step had to do and how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from quire.core.limits import EngineLimits
from quire.core.protocol import Executor, PendingStep, Step, StepResult
from quire.engine.engine import Engine
from quire.engine.outputs import Delta
from quire.engine.work import sights_of, work_of
from quire_lab.calibration.steps import TimedStep

CLOCKS: Mapping[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.thread_time}
"""By unit. The calling thread takes part in all that is computed, and sleeps where it waits."""


class WatchedEngine:
    """Steps an engine. Scheduling, sampling and detokenising are in a step's time.

    alone: but for sampling they are not: what a model takes that computes in others' steps.
    """

    def __init__(
        self, engine: Engine, limits: EngineLimits, unit: str = "wall", *, alone: bool = False
    ) -> None:
        self.engine = engine
        self._alone = alone
        self._clock = CLOCKS[unit]
        self._sights = sights_of(limits.kv_groups)
        self.steps: list[TimedStep] = []
        self._watch = _Watch(engine.executor, self._clock)
        engine.executor = self._watch

    @property
    def executor(self) -> Executor:
        """The engine's own, unwatched."""
        return self._watch.inner

    def step(self, *, woken: bool = False) -> list[Delta]:
        """One step, noted. ``woken``: nothing had run before it for a while."""
        start = self._clock()
        deltas = self.engine.step()
        seconds = self._watch.seconds if self._alone else self._clock() - start
        work = work_of(self._watch.step, self._sights)
        self.steps.append(TimedStep(work._replace(woken=int(woken)), seconds))
        return deltas


class _Watch:
    """An executor that remembers its last step, and how long that took."""

    def __init__(self, inner: Executor, clock: Callable[[], float]) -> None:
        self.inner = inner
        self.step, self.seconds = Step(), 0.0
        self._clock = clock

    def submit(self, step: Step) -> PendingStep:
        self.step, start = step, self._clock()
        pending = self.inner.submit(step)
        self.seconds = self._clock() - start

        def collect() -> StepResult:
            start = self._clock()
            result = pending.collect()
            self.seconds += self._clock() - start
            return result

        return PendingStep(step, collect)
