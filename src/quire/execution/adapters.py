"""Whose rows of a step are changed by which adapter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor

from quire.core.protocol import Adapter, Opened
from quire.kernels.adapters import AdaptedRows, OwnTables


class StepAdapters:
    """The numbers that a step's adapters have in its batch, and their weights.

    weights: of all adapters in memory: what ``Kernels.keep_adapter`` gave, and their tables.
    """

    def __init__(self, weights: Mapping[Adapter, tuple[Any, OwnTables]]) -> None:
        self._weights = weights
        self.at_hand: Sequence[Adapter] = []  # of the step, as they are numbered

    def numbers(self, known: Sequence[Opened]) -> list[int]:
        """The number of each sequence's adapter, -1 for none; empty where no sequence has one."""
        adapters = [one.request.adapter for one in known]
        self.at_hand = [one for one in dict.fromkeys(adapters) if one is not None]
        if not self.at_hand:
            return []
        number = {adapter: place for place, adapter in enumerate(self.at_hand)}
        return [-1 if one is None else number[one] for one in adapters]

    def rows(self, numbers: Tensor, query_starts: Sequence[int]) -> tuple[AdaptedRows, ...]:
        """The rows that adapters change, of sequences whose rows begin at ``query_starts``."""
        ranges: list[list[tuple[int, int]]] = [[] for _ in self.at_hand]
        for number, bounds in zip(numbers.tolist(), pairwise(query_starts), strict=True):
            if number >= 0:
                ranges[number].append(bounds)
        both = zip(ranges, self.at_hand, strict=True)
        return tuple(AdaptedRows(tuple(own), *self._weights[one]) for own, one in both)
