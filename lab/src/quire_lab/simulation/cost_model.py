"""What a step costs in seconds: the seam between a simulation and the machine it stands for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from quire.core.protocol import RecoveryCosts, Work


class CostModel(Protocol):
    """Seconds from work. The same work always takes the same time."""

    def seconds(self, work: Work) -> float:
        """How long a step with this work takes; above zero."""
        ...

    def recovery_costs(self, block_size: int) -> RecoveryCosts:
        """What the scheduler weighs when it chooses between swap and recompute."""
        ...


class DraftCosts(CostModel, Protocol):
    """Of a model that drafts for another one, in whose steps it computes."""

    def moving(self, work: Work) -> float:
        """Seconds of its part of the blocks that a step moves, beside the other model's."""
        ...


@dataclass(frozen=True)
class CostsWithDraft:
    """Of a model for which another one drafts. Blocks hold keys and values of both.

    A pass of the draft model takes what a step of it would.
    """

    target: CostModel
    draft: DraftCosts

    def seconds(self, work: Work) -> float:
        """Of a step, without the draft model's passes."""
        return self.target.seconds(work) + self.draft.moving(work)

    def pass_seconds(self, work: Work) -> float:
        """Of a pass of the draft model."""
        return self.draft.seconds(work)

    def recovery_costs(self, block_size: int) -> RecoveryCosts:
        """Of both."""
        own, beside = (one.recovery_costs(block_size) for one in (self.target, self.draft))
        return RecoveryCosts(
            own.swap_per_block + beside.swap_per_block,
            own.recompute_per_token + beside.recompute_per_token,
            own.fetch_per_block + beside.fetch_per_block,
        )


def decoding(num_seqs: int, context: int) -> Work:
    """The work of a step that only decodes."""
    return Work(0, 0, 0, num_seqs, context, num_seqs, 0, 0)


def beside(work: Work, num_seqs: int, context: int) -> Work:
    """What others do, and as many sequences that decode beside them."""
    return work._replace(
        decode_seqs=work.decode_seqs + num_seqs,
        decode_context=work.decode_context + context,
        samples=work.samples + num_seqs,
    )
