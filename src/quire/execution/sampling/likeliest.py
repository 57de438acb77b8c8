"""The likeliest tokens at one position, in few bytes."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import overload


class Likeliest(Sequence[tuple[int, float]]):
    """(token id, log-probability), the likeliest first.

    A prompt may ask for two hundred thousand of them. As pairs of Python's own they would take ten
    times the memory, leave it in pieces, and be looked through whenever garbage is collected.
    """

    __slots__ = ("_count", "_table", "_width")

    def __init__(self, table: array[float], count: int) -> None:
        """The first ``count`` of a table: first all ids, then as many log-probabilities."""
        self._table = table
        self._width = len(table) // 2
        self._count = min(count, self._width)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> tuple[int, float]: ...

    @overload
    def __getitem__(self, index: slice) -> list[tuple[int, float]]: ...

    def __getitem__(self, index: int | slice) -> tuple[int, float] | list[tuple[int, float]]:
        if isinstance(index, slice):
            return list(self)[index]
        place = range(self._count)[index]
        return int(self._table[place]), self._table[self._width + place]

    def __iter__(self) -> Iterator[tuple[int, float]]:
        for place in range(self._count):
            yield int(self._table[place]), self._table[self._width + place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]
