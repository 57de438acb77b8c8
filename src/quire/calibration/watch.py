"""The real engine, with a note of what each step had to do and how long it took."""

from __future__ import annotations

import time
from typing import NamedTuple

from quire.capacity import EngineLimits
from quire.engine import Delta, Engine
from quire.protocol import Executor, PendingStep, Step
from quire.simulation import Work, sights_of, work_of


class TimedStep(NamedTuple):
    """A step of the real engine: its work, and the seconds that ``Engine.step`` took."""

    work: Work
    seconds: float


class WatchedEngine:
    """Steps an engine. Scheduling, sampling and detokenising are in a step's time."""

    def __init__(self, engine: Engine, limits: EngineLimits) -> None:
        self.engine = engine
        self._sights = sights_of(limits.kv_groups)
        self.steps: list[TimedStep] = []
        self._watch = _Watch(engine.executor)
        engine.executor = self._watch

    @property
    def executor(self) -> Executor:
        """The engine's own, unwatched."""
        return self._watch.inner

    def step(self, *, woken: bool = False) -> list[Delta]:
        """One step, noted. ``woken``: nothing had run before it for a while."""
        start = time.perf_counter()
        deltas = self.engine.step()
        seconds = time.perf_counter() - start
        work = work_of(self._watch.step, self._sights)
        self.steps.append(TimedStep(work._replace(woken=int(woken)), seconds))
        return deltas


class _Watch:
    """An executor that remembers its last step."""

    def __init__(self, inner: Executor) -> None:
        self.inner = inner
        self.step = Step()

    def submit(self, step: Step) -> PendingStep:
        self.step = step
        return self.inner.submit(step)
