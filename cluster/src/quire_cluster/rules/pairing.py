"""Whether a prefill replica should compute a prompt in place of the replica that answers."""

from __future__ import annotations

TAKEN_WITHIN = 1.0
"""Seconds in which one of the prefill replicas must have taken a prompt."""

_FIRST_REST, _LONGEST_REST = 5.0, 60.0  # seconds without prefill replicas after a failure


class Pairing:
    """Prompts with at most ``most_local`` new tokens are computed where they are answered.

    There they delay the next tokens of running requests; elsewhere they cost a message, an answer
    and the transfer of blocks. After a prefill replica has not answered, all prompts are computed
    locally for a while, which doubles with each further failure.
    """

    def __init__(self, most_local: int) -> None:
        self._most_local = most_local
        self._rest = _FIRST_REST / 2
        self._rests_until = float("-inf")

    def pays(self, new_tokens: int, now: float) -> bool:
        """new_tokens: of the prompt, in blocks that the local pool lacks."""
        return new_tokens > self._most_local and now >= self._rests_until

    def answered(self) -> None:
        """Note that a prefill replica has computed a prompt."""
        self._rest = _FIRST_REST / 2

    def unanswered(self, now: float) -> None:
        """Note that a prefill replica has been silent for too long."""
        if now >= self._rests_until:  # other requests may have waited for the same replica
            self._rest = min(2 * self._rest, _LONGEST_REST)
            self._rests_until = now + self._rest
