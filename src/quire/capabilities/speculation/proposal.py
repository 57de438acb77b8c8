"""Who guesses what a text goes on with, and what is guessed."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple, Protocol

from quire.core.protocol import Request
from quire.core.scheduling.sequence import Sequence


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
        """This sequence has ended. It need not be known."""
        ...

    @property
    def num_bytes(self) -> int:
        """Of memory that it holds."""
        ...
