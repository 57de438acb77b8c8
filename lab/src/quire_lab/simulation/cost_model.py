"""How many seconds a step takes: the interface between a simulation and a machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from quire.core.protocol import RecoveryCosts
from quire.engine.work import Work


class CostModel(Protocol):
    """Seconds from work. The same work always takes the same time."""

    def seconds(self, work: Work) -> float:
        """How long a step with this work takes; above zero."""
        ...

    def recovery_costs(self, block_size: int) -> RecoveryCosts:
        """The costs that the scheduler weighs when it chooses between swap and recompute."""
        ...


class DraftCosts(CostModel, Protocol):
    """Costs of a draft model, which computes within the steps of another one."""

    def moving(self, work: Work) -> float:
        """Seconds of its part of the blocks that a step moves, beside the other model's."""
        ...


@dataclass(frozen=True)
class CostsWithDraft:
    """Costs of a model with a draft model. Blocks hold keys and values of both.

    A pass of the draft model takes as long as a step of it.
    """

    target: CostModel
    draft: DraftCosts

    def seconds(self, work: Work) -> float:
        """Seconds of a step, without the draft model's passes."""
        return self.target.seconds(work) + self.draft.moving(work)

    def pass_seconds(self, work: Work) -> float:
        """Seconds of a pass of the draft model."""
        return self.draft.seconds(work)

    def recovery_costs(self, block_size: int) -> RecoveryCosts:
        """Costs of both models together."""
        own, beside = (one.recovery_costs(block_size) for one in (self.target, self.draft))
        return RecoveryCosts(
            own.swap_per_block + beside.swap_per_block,
            own.recompute_per_token + beside.recompute_per_token,
            own.fetch_per_block + beside.fetch_per_block,
        )


def decoding(num_seqs: int, context: float) -> Work:
    """The work of a step that only decodes."""
    return Work(0, 0, 0, num_seqs, context, num_seqs, 0, 0)
