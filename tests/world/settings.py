"""How the server of a life is set up."""

from __future__ import annotations

import random
from dataclasses import dataclass

from quire.core.protocol import PreemptionMode, SchedulingPolicy


@dataclass(frozen=True)
class Settings:
    """In the names of the engine's and the server's own settings."""

    num_blocks: int
    num_host_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_sessions: int
    max_num_waiting: int
    max_queue_time: float | None
    policy: SchedulingPolicy
    preemption: PreemptionMode
    session_timeout: float
    request_read_timeout: float
    shutdown_timeout: float

    @classmethod
    def draw(cls, rng: random.Random) -> Settings:
        host_blocks = rng.choice([0, 40, 80])
        modes = list(PreemptionMode) if host_blocks else [PreemptionMode.RECOMPUTE]
        return cls(
            num_blocks=rng.choice([40, 48, 80, 300]),
            num_host_blocks=host_blocks,
            max_num_seqs=rng.choice([4, 8, 32]),
            max_num_batched_tokens=rng.choice([8, 32, 256]),
            max_num_sessions=rng.choice([2, 8]),
            max_num_waiting=rng.choice([50, 2048]),
            max_queue_time=rng.choice([None, None, 10.0]),
            policy=rng.choice(list(SchedulingPolicy)),
            preemption=rng.choice(modes),
            session_timeout=rng.choice([0.0, 1800.0]),
            request_read_timeout=rng.choice([5.0, 30.0]),
            shutdown_timeout=rng.choice([0.0, 30.0, 600.0]),
        )
