"""Drafts of what cannot be otherwise: where a grammar leaves one way to go on."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq

from quire.capabilities.speculation.proposal import Proposal
from quire.core.protocol import Outcome, Request
from quire.core.scheduling.sequence import Sequence

_SURE = 0.99  # the same text may be other tokens


class Forced:
    """Passes on what executors have found with the tokens of the step before."""

    name = "grammar"
    num_bytes = 0  # but for a step's

    def __init__(self) -> None:
        self._known: dict[int, Seq[int]] = {}

    @property
    def knows(self) -> bool:
        """Whether there is anything to say."""
        return bool(self._known)

    def hear(self, outcomes: Mapping[int, Outcome]) -> None:
        """What a step gave."""
        self._known.clear()
        for seq_id, outcome in outcomes.items():
            if outcome.forced:
                self._known[seq_id] = outcome.forced

    def propose(self, request: Request, sequence: Sequence, most: int) -> Proposal | None:
        """See ``Drafter``."""
        known = self._known.get(sequence.seq_id)
        return None if known is None else Proposal(known[:most], [_SURE] * min(most, len(known)))

    def close(self, seq_id: int) -> None:
        """See ``Drafter``."""
        self._known.pop(seq_id, None)
