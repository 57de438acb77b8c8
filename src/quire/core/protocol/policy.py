"""How an engine is told to schedule, and what it weighs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class SchedulingPolicy(str, Enum):
    FCFS = "fcfs"
    PRIORITY = "priority"
    FAIR = "fair"


class PreemptionMode(str, Enum):
    AUTO = "auto"  # whichever costs less for this victim
    SWAP = "swap"
    RECOMPUTE = "recompute"


@dataclass(frozen=True)
class RecoveryCosts:
    """What having blocks again costs on this machine, in seconds."""

    swap_per_block: float = 0.0  # one way
    recompute_per_token: float = 0.0
    fetch_per_block: float = 0.0  # from beyond the pool

    def fetching_pays(self, block_size: int) -> bool:
        """Whether a block is fetched in less time than its tokens are computed in."""
        return self.fetch_per_block <= block_size * self.recompute_per_token
