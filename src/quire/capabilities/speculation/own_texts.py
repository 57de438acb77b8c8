"""The texts of sequences that live, each with its index."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq
from typing import NamedTuple

from quire.capabilities.speculation._native import Text
from quire.core.protocol import Request
from quire.core.scheduling.sequence import Sequence

_ROOM = 4096  # tokens of an output that an index has room for at once; beyond, it is made larger


class _KnownText(NamedTuple):
    text: Text
    token_ids: array[int]  # the sequence's own: another one where it has been cut
    request_id: str


class OwnTexts:
    """Prompt and output of each sequence.

    A text is indexed once, when its sequence is first asked for. Later branches of a request begin
    with a copy of a sibling's index; a session that was cut keeps what its text still begins with.

    orders: lengths in tokens of what can be looked for.
    """

    def __init__(self, orders: Seq[int]) -> None:
        self._orders = orders
        self._known: dict[int, _KnownText] = {}
        self._siblings: dict[str, int] = {}  # by request, a sequence that is known

    def of(self, request: Request, sequence: Sequence) -> Text:
        """Its index, which the next guess will bring up to date."""
        known = self._known.get(sequence.seq_id)
        if known is None or known.token_ids is not sequence.token_ids:
            known = self._begin(request, sequence, known)
        return known.text

    def _begin(self, request: Request, sequence: Sequence, known: _KnownText | None) -> _KnownText:
        token_ids, sibling = sequence.token_ids, self._siblings.get(request.request_id)
        if known is not None:
            text = known.text
        elif sibling is not None:
            text = self._known[sibling].text.copy()
        else:
            room = min(request.max_tokens, _ROOM)
            text = Text(self._orders, len(token_ids) + room)
        text.become(token_ids)
        self.close(sequence.seq_id)
        known = self._known[sequence.seq_id] = _KnownText(text, token_ids, request.request_id)
        self._siblings[request.request_id] = sequence.seq_id
        return known

    def close(self, seq_id: int) -> None:
        known = self._known.pop(seq_id, None)
        if known is not None and self._siblings.get(known.request_id) == seq_id:
            del self._siblings[known.request_id]

    @property
    def num_bytes(self) -> int:
        return sum(known.text.num_bytes for known in list(self._known.values()))
