"""Tokens that sequences see in steps that only decode, counted without looking at each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quire.engine.work import Sight


class SeenTokens:
    """How many tokens rows see in a step, one more each time, as far as some of the layers see.

    Whole numbers, so that the sum is the same in whatever order rows are looked at.

    totals: those of the next step, by sight.
    """

    def __init__(self, sights: Sequence[Sight]) -> None:
        self.sights = sights
        self.totals = [0] * len(sights)
        self._growing = [0] * len(sights)  # rows that see one more in the step after it
        # By step: rows that see as many in it as they ever will.
        self._full: list[dict[int, int]] = [{} for _ in sights]

    def add(self, num_tokens: int, step: int) -> None:
        """A row comes that would see so many in that step, the next one, if it saw all."""
        self._count(num_tokens, step, 1)

    def remove(self, num_tokens: int, step: int) -> None:
        """A row goes that would have seen so many in the next one."""
        self._count(num_tokens, step, -1)

    def _count(self, num_tokens: int, step: int, rows: int) -> None:
        for index, sight in enumerate(self.sights):
            most = num_tokens if sight.tokens is None else sight.tokens
            self.totals[index] += rows * min(num_tokens, most)
            if sight.tokens is None:
                self._growing[index] += rows
            elif num_tokens < most:
                self._growing[index] += rows
                full, when = self._full[index], step + most - num_tokens
                full[when] = full.get(when, 0) + rows

    def step(self, step: int) -> None:
        """That one is the next now."""
        for index, full in enumerate(self._full):
            self.totals[index] += self._growing[index]
            if full:
                self._growing[index] -= full.pop(step, 0)

    def ahead(self, step: int) -> Iterator[list[int]]:
        """``totals`` of the next step, which is that one, and of those after it."""
        totals, growing = [*self.totals], [*self._growing]
        while True:
            yield totals
            step += 1
            for index, full in enumerate(self._full):
                totals[index] += growing[index]
                if full:
                    growing[index] -= full.get(step, 0)
