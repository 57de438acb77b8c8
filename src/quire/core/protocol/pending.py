"""A step under way, and who carries it out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from quire.core.protocol.step import Step, StepResult


class PendingStep:
    """A step that has been begun, and its result as soon as somebody asks for it.

    compute: waits for the step's end; called once, of one step after the other.
    """

    def __init__(self, step: Step, compute: Callable[[], StepResult]) -> None:
        self.step = step
        self._compute = compute
        self._result: StepResult | None = None
        self._error: BaseException | None = None

    @classmethod
    def failed(cls, step: Step, error: BaseException) -> PendingStep:
        """One that could not be begun."""
        pending = cls(step, StepResult)
        pending._error = error
        return pending

    @property
    def has_failed(self) -> bool:
        """Whether it is known to have failed."""
        return self._error is not None

    def wait(self) -> None:
        """Until its result is there, or an error in its place."""
        if self._result is None and self._error is None:
            try:
                self._result = self._compute()
            except BaseException as error:  # an interrupt too: nobody knows how far it came
                self._error = error

    def collect(self) -> StepResult:
        """What it gave; raises what made it fail. Waits for it."""
        self.wait()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result


class Executor(Protocol):
    """Carries out steps on some device.

    Steps take effect in the order in which they are submitted, moves included: one that is
    submitted while another is under way reads what that one writes, and writes only where that one
    has read.
    """

    def submit(self, step: Step) -> PendingStep:
        """Begin a step: one that was planned ahead after the one under way, others after none.

        Where nothing but the calling thread computes, the step is done when this returns.
        """
        ...
