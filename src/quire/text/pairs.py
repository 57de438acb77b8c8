"""Two texts as one prompt, by the tokenizer's own template for pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from quire.core.errors import RequestError


class Pair(NamedTuple):
    """second_from: the first token of the second type; None: all tokens are of one type."""

    token_ids: list[int]
    second_from: int | None = None

    @classmethod
    def of_types(cls, token_ids: list[int], types: Sequence[int]) -> Pair:
        """types: of each token, 0 or 1; the second type is the end of a pair."""
        if 1 not in types:
            return cls(token_ids)
        start = types.index(1)
        assert all(types[start:]), "tokenizers put the second text behind the first"
        return cls(token_ids, start)


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of two texts are kept, so that they are ``room`` at most together.

    The longer one is cut to the length of the other; then both, to the same length.
    """
    short = min(first, second)
    if first + second <= room:
        return first, second
    if short <= room // 2:
        return (room - short, short) if first > second else (short, room - short)
    half, more = room // 2, room - room // 2
    return (more, half) if first > second else (half, more)


def room_between(most: int, around: int) -> int:
    """Tokens for two texts, where there are ``around`` special ones; RequestError for too few."""
    if most < around + 2:
        raise RequestError(
            f"truncate_prompt_tokens must be at least {around + 2} for pairs here, got {most}",
            "truncate_prompt_tokens",
        )
    return most - around
