"""Drafts by what a request says that its output will be like."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from quire.capabilities.speculation._native import Follower, Text
from quire.capabilities.speculation.proposal import Proposal
from quire.core.protocol import Request
from quire.core.scheduling.sequence import Sequence

_ORDERS = (4,)  # tokens by which a place far away is found


class _Predicted(NamedTuple):
    follower: Follower
    predicted: Text
    request_id: str


class PredictionDrafter:
    """Goes on in the prediction from where the output last agreed with it.

    After an edit the place is found again by the last tokens: near the last one if it can be.
    """

    name = "prediction"

    def __init__(self) -> None:
        self._known: dict[int, _Predicted] = {}

    def propose(self, request: Request, sequence: Sequence, most: int) -> Proposal | None:
        if not request.prediction:
            return None
        known = self._known.get(sequence.seq_id) or self._begin(request, sequence)
        first = sequence.num_prompt_tokens
        guess = known.follower.guess(sequence.token_ids, first, most)
        return None if guess is None else Proposal(*guess[:3])

    def _begin(self, request: Request, sequence: Sequence) -> _Predicted:
        siblings = (one for one in self._known.values() if one.request_id == request.request_id)
        sibling = next(siblings, None)
        if sibling is not None:  # the index is the same, and does not change
            predicted = sibling.predicted
        else:
            predicted = Text(_ORDERS, len(request.prediction))
            predicted.become(array("I", request.prediction))
        known = _Predicted(Follower(predicted), predicted, request.request_id)
        self._known[sequence.seq_id] = known
        return known

    def close(self, seq_id: int) -> None:
        self._known.pop(seq_id, None)

    @property
    def num_bytes(self) -> int:
        texts = {id(known.predicted): known.predicted for known in list(self._known.values())}
        return sum(text.num_bytes for text in texts.values())
