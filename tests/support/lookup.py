"""A drafter for tests, as plain as can be: the latest place where the last tokens stood before."""

from __future__ import annotations

from quire.capabilities.speculation import Proposal
from quire.core.protocol import Request
from quire.core.scheduling.sequence import Sequence


class Lookup:
    """Looks for the last tokens, as many as possible, each time from the beginning."""

    name, num_bytes = "lookup", 0

    def propose(self, request: Request, sequence: Sequence, most: int) -> Proposal | None:
        """See ``Drafter``."""
        text, found, longest = list(sequence.token_ids), 0, 0
        for end in range(1, len(text)):
            length = 0
            while length < end and text[end - 1 - length] == text[-1 - length]:
                length += 1
            if length >= longest:
                found, longest = end, length
        tokens = text[found : found + most] if longest else []
        return Proposal(tokens, [1.0] * len(tokens), longest) if tokens else None

    def close(self, seq_id: int) -> None:
        """See ``Drafter``."""
