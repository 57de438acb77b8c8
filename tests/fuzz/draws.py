"""Choices at random that are remembered, so that they can be made again, or made smaller."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

_T = TypeVar("_T")

_SMALL, _MIDDLING = 4, 64
_DEEPEST = 24  # things in each other; what is deeper is made by loops


class Draws:
    """Choices from a seed, or choices that were made before.

    chosen: those made so far, each a number; 0 is the plainest. Where those given are used up, each
        further one is 0.
    left: things that may yet be made of them, which bounds a case.
    """

    def __init__(self, seed: int | None, given: Sequence[int] = ()) -> None:
        self._chance = None if seed is None else random.Random(seed)
        self._given = given
        self._depth = 0
        self.chosen: list[int] = []
        self.left = (12, 40, 120, 400, 3_000)[self.below(5)]
        self._odd = self.one_in(4)

    def below(self, bound: int) -> int:
        if self._chance is not None:
            number = self._chance.randrange(bound)
        else:
            place = len(self.chosen)
            number = min(self._given[place], bound - 1) if place < len(self._given) else 0
        self.chosen.append(number)
        return number

    def pick(self, options: Sequence[_T]) -> _T:
        """One of them; the first is the plainest."""
        return options[self.below(len(options))]

    def one_in(self, number: int) -> bool:
        return self.below(number) == number - 1

    def oddly(self) -> bool:
        """Whether to make what a reader may well refuse: seldom, and in few cases at all."""
        return self._odd and self.one_in(6)

    def size(self, most: int) -> int:
        """A number up to ``most``: mostly small, at times the largest."""
        match self.below(12):
            case 9 | 10:
                return self.below(min(_MIDDLING, most) + 1)
            case 11:
                return most - self.below(max(1, most // 4))
        return self.below(min(_SMALL, most) + 1)

    def length(self, most: int) -> int:
        """The same of what is there for its length: often large."""
        return self.below(most + 1) if self.one_in(3) else self.size(most)

    def spend(self) -> bool:
        """Whether one more thing may be made."""
        self.left -= 1
        return self.left > 0

    def deeper(self, make: Callable[[], _T], plain: _T) -> _T:
        """A thing that may have others in it; ``plain`` where no more may be made."""
        if not self.spend() or self._depth == _DEEPEST:
            return plain
        self._depth += 1
        try:
            return make()
        finally:
            self._depth -= 1

    def several(self, most: int) -> range:
        """One or more things."""
        return range(min(1 + self.size(most - 1), max(1, self.left)))
