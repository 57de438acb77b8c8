"""Who guesses what a text goes on with, and what is guessed; those who need no index for it."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import NamedTuple, Protocol

from quire.core.protocol import TO_DRAFT, Outcome, Request
from quire.core.scheduling.sequence import Sequence

_SURE = 0.99  # the same text may be other tokens
_CHANCE = 0.6  # what comes of it is learned from step to step


class Proposal(NamedTuple):
    """Drafts of the next tokens of a text.

    chances: of each draft, that it is right if all before it are, as far as its drafter can tell;
        in (0, 1].
    evidence: how much the guess rests on: the length in tokens of the match that it was found by,
        or 0 where there is no such thing.
    """

    tokens: Seq[int]
    chances: Seq[float]
    evidence: int = 0


class Drafter(Protocol):
    """Guesses. What it keeps of a sequence is derived from its tokens: it may be dropped any time.

    It is asked about sequences that are drafted for in every step, and about others in turn, so
    several tokens may have come meanwhile. What it says of those is held against what comes.
    """

    name: str

    def propose(self, request: Request, sequence: Sequence, most: int) -> Proposal | None:
        """Up to ``most`` drafts of what follows ``sequence.token_ids``; None: no idea."""
        ...

    def close(self, seq_id: int) -> None:
        """Forget a sequence that has ended; it need not be known."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that it holds."""
        ...


class Forced:
    """A ``Drafter``. Passes on what executors have found with the tokens of the step before."""

    name = "grammar"
    num_bytes = 0  # but for a step's

    def __init__(self) -> None:
        self._known: dict[int, Seq[int]] = {}

    @property
    def knows(self) -> bool:
        """Whether any tokens are known."""
        return bool(self._known)

    def hear(self, outcomes: Mapping[int, Outcome]) -> None:
        """Take up the tokens that a step found to be forced."""
        self._known.clear()
        for seq_id, outcome in outcomes.items():
            if outcome.forced:
                self._known[seq_id] = outcome.forced

    def propose(self, request: Request, sequence: Sequence, most: int) -> Proposal | None:
        known = self._known.get(sequence.seq_id)
        return None if known is None else Proposal(known[:most], [_SURE] * min(most, len(known)))

    def close(self, seq_id: int) -> None:
        self._known.pop(seq_id, None)


class DraftModelDrafter:
    """A ``Drafter`` that always drafts: which tokens, the executor knows once the step runs."""

    name = "draft"

    def propose(self, request: Request, sequence: Sequence, most: int) -> Proposal | None:
        return Proposal([TO_DRAFT] * most, [_CHANCE] * most)

    def close(self, seq_id: int) -> None:
        """See ``Drafter``."""

    @property
    def num_bytes(self) -> int:
        """Its keys and values are the pool's."""
        return 0
