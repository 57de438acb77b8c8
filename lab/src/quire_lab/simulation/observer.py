"""Who wants to see every step of a simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from quire.core.protocol import Decision, Outcome, Progress, Step


class Observer(Protocol):
    """Is told of every step, and of requests that are refused when they come."""

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
