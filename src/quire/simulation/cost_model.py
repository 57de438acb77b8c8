"""What a step costs in seconds: the seam between a simulation and the machine it stands for."""

from __future__ import annotations

from typing import Protocol

from quire.protocol import RecoveryCosts
from quire.simulation.work import Work


class CostModel(Protocol):
    """Seconds from work. The same work always takes the same time."""

    def seconds(self, work: Work) -> float:
        """How long a step with this work takes; above zero."""
        ...

    def recovery_costs(self, block_size: int) -> RecoveryCosts:
        """What the scheduler weighs when it chooses between swap and recompute."""
        ...
