"""Leaves guessing to a smaller model, which runs where the drafts are verified."""

from __future__ import annotations

from quire.capabilities.speculation.proposal import Proposal
from quire.core.protocol import TO_DRAFT, Request
from quire.core.scheduling.sequence import Sequence

_CHANCE = 0.6  # what comes of it is learned from step to step


class DraftModelDrafter:
    """Always has something to say. Which tokens, the executor knows once the step runs."""

    name = "draft"

    def propose(self, request: Request, sequence: Sequence, most: int) -> Proposal | None:
        """See ``Drafter``."""
        return Proposal([TO_DRAFT] * most, [_CHANCE] * most)

    def close(self, seq_id: int) -> None:
        """See ``Drafter``."""

    @property
    def num_bytes(self) -> int:
        """Its keys and values are the pool's."""
        return 0
