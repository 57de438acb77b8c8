"""A step from when it is planned to when its result is there."""

from __future__ import annotations

from collections.abc import Callable

from quire.memory import Usage
from quire.scheduling import Executor, PipelinedExecutor, Step, StepResult


class Flight:
    """A step that has been planned, and begun if the executor computes by itself.

    usage: of the pool during the step. started: when its planning began.
    """

    def __init__(
        self, step: Step, usage: Usage, started: float, compute: Callable[[], StepResult]
    ) -> None:
        self.step = step
        self.usage = usage
        self.started = started
        self._compute = compute
        self._result: StepResult | None = None
        self._error: Exception | None = None

    @classmethod
    def to_compute(cls, executor: Executor, step: Step, usage: Usage, started: float) -> Flight:
        """A step that is computed when its result is asked for."""
        return cls(step, usage, started, lambda: executor.execute(step))

    @classmethod
    def begun(cls, executor: PipelinedExecutor, step: Step, usage: Usage, started: float) -> Flight:
        """A step that a device computes from now on."""
        try:
            under_way = executor.submit(step)
        except Exception as error:
            flight = cls(step, usage, started, lambda: StepResult({}))
            flight._error = error
            return flight
        return cls(step, usage, started, under_way.collect)

    @property
    def broken(self) -> bool:
        """Whether it is known to have failed."""
        return self._error is not None

    def computes(self, request_id: str) -> bool:
        """Whether tokens of that request are part of it."""
        return any(chunk.request.request_id == request_id for chunk in self.step.chunks)

    def land(self) -> None:
        """Wait for the result, or for the error in its place."""
        if self._result is None and self._error is None:
            try:
                self._result = self._compute()
            except Exception as error:
                self._error = error

    def result(self) -> StepResult:
        """What the step gave; raises what made it fail. Waits for it."""
        self.land()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result
