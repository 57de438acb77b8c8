"""Steps as slow as the paper's own were, to see what of a difference is the machine's speed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from quire.core.protocol import RecoveryCosts
from quire.engine.work import Work
from quire_lab.reproduction.systems import deployment
from quire_lab.simulation.cost_model import CostModel, decoding
from quire_lab.simulation.planning.deployment import Deployment
from quire_lab.workload import DATASETS

BATCHES: Mapping[tuple[str, float], tuple[float, float, float, float]] = {
    ("sharegpt", 2.0): (7.00, 9.81, 13.62, 30.42),
    ("alpaca", 30.0): (7.00, 43.24, 72.75, 132.44),
}
"""Dataset and requests a second; the mean batches of ``SYSTEMS`` under them: figure 13."""


class SlowSteps:
    """A cost model with as much more for each step, and each sequence in it, as the paper's took.

    By Little's law a request was batch / rate seconds in the system, and a token took that much
    over the output's mean length: 45 ms in a batch of 30, 76 ms in one of 132. The line through
    both gives the time of a step and of a sequence.
    """

    def __init__(self, costs: CostModel) -> None:
        self._costs = costs
        (few, low), (many, high) = (
            (paged, paged / rate / DATASETS[dataset][1].mean)
            for (dataset, rate), (*_, paged) in BATCHES.items()
        )
        self.per_sequence = (high - low) / (many - few)
        whole = low - few * self.per_sequence
        self.per_step = max(0.0, whole - costs.seconds(decoding(1, 1)))

    def seconds(self, work: Work) -> float:
        sequences = work.decode_seqs * self.per_sequence
        return self._costs.seconds(work) + self.per_step + sequences

    def recovery_costs(self, block_size: int) -> RecoveryCosts:
        return self._costs.recovery_costs(block_size)


def slow_deployment(model: str) -> Deployment:
    """The model on the paper's machine, with blocks of 16 tokens and slow steps."""
    where = deployment(model)
    return replace(where, costs=SlowSteps(where.cost_model(16)))
