"""Small simulated fleets, quick to run and slow in virtual time."""

from __future__ import annotations

from typing import Any

from quire.core.limits import EngineLimits
from quire.core.protocol import RecoveryCosts
from quire.engine.traces.request import TraceRequest
from quire_lab.simulation import MACHINES, MODELS, Deployment, Work
from quire_lab.simulation.fleet import FleetResult, FleetSetup, FleetSimulator
from quire_lab.simulation.recorder import KeptResults
from support.limits import make_limits

BLOCK = 4


class UnevenCosts:
    """Times that no two steps share, so that a step in the wrong place shows."""

    def __init__(self, slowness: float = 1.0) -> None:
        self.slowness = slowness

    def seconds(self, work: Work) -> float:
        return self.slowness * (
            0.003 + 7e-4 * work.prefill_tokens + 1.1e-4 * work.decode_seqs
            + 1.3e-6 * work.decode_context + 1e-3 * (work.copied_blocks + work.swapped_blocks)
            + 0.002 * work.woken
        )  # fmt: skip

    def recovery_costs(self, block_size: int) -> RecoveryCosts:
        return RecoveryCosts(swap_per_block=5e-4, recompute_per_token=3e-4)


class Small(Deployment):
    """An engine with so many blocks, whatever its machine is."""

    def limits(self) -> EngineLimits:
        config = self.config
        return make_limits(
            60, 120, block_size=BLOCK, max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            enable_prefix_caching=config.enable_prefix_caching,
        )  # fmt: skip


def small(slowness: float = 1.0, **config: Any) -> Deployment:
    given = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "enable_prefix_caching": True}
    base = Small(MODELS["llama-3-8b"], MACHINES["h100"], costs=UnevenCosts(slowness))
    return base.configured(**(given | config))


def served(setup: FleetSetup, workload: list[TraceRequest], **facts: Any) -> FleetResult:
    return FleetSimulator(setup, KeptResults(records=None), seed=7, **facts).run(workload)
