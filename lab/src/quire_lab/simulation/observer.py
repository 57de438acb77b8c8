"""The interface of those that want to see every step of a simulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from quire.core.protocol import Decision, Outcome, Progress, Step


class Observer(Protocol):
    """Sees every step, and requests that are refused when they come."""

    def planned(self, step: Step) -> None: ...

    def ended(
        self,
        now: float,
        step: Step,
        outcomes: Mapping[int, Outcome],
        progress: Sequence[Progress],
    ) -> None:
        """The step gave this, and the scheduler knows of it."""

    def refused(self, now: float, decision: Decision) -> None: ...


class Visit(NamedTuple):
    """Who wants to see one step. look: called with the time at which it began."""

    at: float
    look: Callable[[float], None]
