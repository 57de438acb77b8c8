"""Drafts by prompt lookup: what followed the last tokens where they stood before."""

from __future__ import annotations

import math

from quire.capabilities.speculation._native import Rule
from quire.capabilities.speculation.own_texts import OwnTexts
from quire.capabilities.speculation.proposal import Proposal
from quire.core.protocol import Request
from quire.core.scheduling.sequence import Sequence


class NgramDrafter:
    """The most last tokens, from ``longest`` down to ``shortest``, that the request's own text has
    had before; of several places the latest."""

    name = "ngram"

    def __init__(self, longest: int, shortest: int) -> None:
        self._texts = OwnTexts(sorted({shortest, longest}))
        self._rule = Rule(64, 1, longest, math.inf, 0.0)

    def propose(self, request: Request, sequence: Sequence, most: int) -> Proposal | None:
        text = self._texts.of(request, sequence)
        guess = text.guess(sequence.token_ids, self._rule, most)
        return None if guess is None else Proposal(*guess[:3])

    def close(self, seq_id: int) -> None:
        self._texts.close(seq_id)

    @property
    def num_bytes(self) -> int:
        return self._texts.num_bytes
