"""Whether a prompt is worth a prefill replica's while, which computes it in place of its own."""

from __future__ import annotations

TAKEN_WITHIN = 1.0
"""Seconds in which one of the prefill replicas must have taken a prompt."""

_FIRST_REST, _LONGEST_REST = 5.0, 60.0  # seconds for which nobody is asked


class Pairing:
    """What is new of a prompt is computed where it is answered, if it is ``most_local`` or less.

    There it takes steps from those who wait for their next token; elsewhere it costs a question,
    an answer and the way of its blocks. Where nobody answers, all is computed here for a while,
    which is twice as long each time that it happens again.
    """

    def __init__(self, most_local: int) -> None:
        self._most_local = most_local
        self._rest = _FIRST_REST / 2
        self._rests_until = float("-inf")

    def pays(self, new_tokens: int, now: float) -> bool:
        """new_tokens: of the prompt, in blocks that the pool here does not have."""
        return new_tokens > self._most_local and now >= self._rests_until

    def answered(self) -> None:
        """Somebody has computed a prompt."""
        self._rest = _FIRST_REST / 2

    def unanswered(self, now: float) -> None:
        """Somebody was asked, and has said nothing for too long."""
        if now >= self._rests_until:  # others may have been waiting for the same
            self._rest = min(2 * self._rest, _LONGEST_REST)
            self._rests_until = now + self._rest
