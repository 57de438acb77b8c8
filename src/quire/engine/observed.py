"""What of an engine is told to those who look at it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from quire.core.scheduling import Scheduler
from quire.engine.capabilities import Capabilities
from quire.engine.decision_log import DecisionLog
from quire.engine.part_times import PartTimes
from quire.engine.progress import RequestProgress
from quire.engine.stats import EngineStats, Recent
from quire.engine.waiting_room import WaitingRoom


class Observed(Protocol):
    """An engine, or a simulated one, to be read between two steps."""

    scheduler: Scheduler
    stats: EngineStats
    recent: Recent
    part_times: PartTimes
    log: DecisionLog
    waiting_room: WaitingRoom
    capabilities: Capabilities
    clock: Callable[[], float]

    def progress(self, request_id: str) -> RequestProgress | None:
        """A request's outputs; None if they are not known, or no longer."""
