"""Which states of texts are worth their slots: what would have to be computed without them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from quire.core.memory.blocks import BlockHash
from quire.core.memory.pool import BlockPool


class SnapshotStops(NamedTuple):
    """Where chunks of a prompt end, so that a snapshot can be taken: figures in tokens.

    every: after so many, while a long prompt is read.
    decoding: after so many, while it is answered.
    """

    every: int
    block_size: int
    decoding: int

    def of(self, num_tokens: int, cached: int, known: int) -> list[int]:
        """For a prompt of ``num_tokens``, of which ``cached`` have been found.

        known: tokens whose blocks are here. Others have left them there, and more may: so the end
            of these is where the next one can go on from.
        """
        size = self.block_size
        last = (num_tokens - 1) // size * size  # a prompt that begins alike computes a token
        stops = {last, known // size * size}
        every = max(size, self.every // size * size)
        stops.update(range((cached // every + 1) * every, last, every))
        return sorted(stop for stop in stops if cached < stop < num_tokens)

    def most_drafts(self, num_tokens: int) -> int:
        """After a step's ``num_tokens``: no more, so that a step ends where one is taken."""
        return self.decoding - 1 - num_tokens % self.decoding


_FIRST = 0.2
"""The chance that a text parts where none has, beside that of one that goes on from its deepest."""


class Snapshots:
    """The snapshots in a pool of slots, by their worth.

    Without one, a text that begins alike goes on from the next shallower: the tokens in between,
    times the chance that such a text comes, are what it is worth. The chance falls with the number
    of texts that have come since it was used. It is good for the deepest of a text, which may go
    on from there; for one that others stand above it rises with the texts that have parted there.
    So a shallow one that branches need does not go for being old, nor does a long talk keep all
    that its turns have left.
    """

    def __init__(self, pool: BlockPool, alive: Callable[[BlockHash], bool]) -> None:
        """alive: whether a snapshot of that name is of use: the text's blocks are there, too."""
        self._pool = pool
        self._alive = alive
        self._depths = [0] * pool.num_blocks  # of the snapshot in each slot, in blocks
        self._bases = [0] * pool.num_blocks  # of the next shallower one, 0: there is none
        self._below: list[int | None] = [None] * pool.num_blocks  # the slot of that one
        self._above = [0] * pool.num_blocks  # snapshots for which it is that one
        self._names: list[Sequence[BlockHash]] = [()] * pool.num_blocks  # of the text it is of
        self._parted = [0] * pool.num_blocks  # texts that have left there what others said
        self._used = [0] * pool.num_blocks  # texts that had come when it was used last
        self._texts = 0

    def text_comes(self) -> None:
        """One more, of which what is not used now has nothing."""
        self._texts += 1

    def add(
        self, slot: int, names: Sequence[BlockHash], depth: int, *, parted: bool = False
    ) -> bool:
        """The state of a text's first ``depth`` blocks; False: it is there already.

        parted: whether it leaves there what others have said.
        """
        pool, name = self._pool, names[depth - 1]
        if pool.find(name) is not None:
            return False
        pool.publish(slot, name)
        base = depth - 1
        while base and pool.find(names[base - 1]) is None:
            base -= 1
        self._depths[slot], self._bases[slot], self._parted[slot] = depth, base, int(parted)
        self._stand_on(slot, pool.find(names[base - 1]) if base else None)
        for other, deep in enumerate(self._depths):  # it may stand between two others
            if deep > depth > self._bases[other] and self._names[other][depth - 1] == name:
                self._bases[other] = depth
                self._stand_on(other, slot)
        self._names[slot], self._used[slot] = names, self._texts
        return True

    def found(self, slot: int) -> None:
        """A text goes on from it."""
        self._used[slot] = self._texts
        self._parted[slot] += self._above[slot] > 0

    def forget(self, slot: int) -> None:
        """Before it goes: those above it cover its tokens, too."""
        for other, below in enumerate(self._below):
            if below == slot:
                self._bases[other] = self._bases[slot]
                self._stand_on(other, self._below[slot])
        self._stand_on(slot, None)
        self._depths[slot], self._names[slot] = 0, ()

    def clear(self) -> None:
        """All of them are gone."""
        for slot in range(self._pool.num_blocks):
            self._stand_on(slot, None)
            self._depths[slot], self._names[slot] = 0, ()

    def _stand_on(self, slot: int, below: int | None) -> None:
        before, self._below[slot] = self._below[slot], below
        if before is not None:
            self._above[before] -= 1
        if below is not None:
            self._above[below] += 1

    def take(self) -> int:
        """A free slot, that of the snapshot of least worth if none is blank."""
        if self._pool.num_free == self._pool.num_cached:
            self._evict(min(self._pool.cached_blocks(), key=self._worth))
        return self._pool.take()

    def make_room(self, slot: int) -> bool:
        """Whether there is a slot for who goes on from a snapshot, so that it stays.

        Not where all other snapshots are worth more.
        """
        pool = self._pool
        if pool.num_free > pool.num_cached:
            return True
        if not pool.num_free:
            return False
        least = min(pool.cached_blocks(), key=self._worth)
        if self._worth(least) > self._worth(slot):
            return False
        self._evict(least)
        return True

    def _evict(self, slot: int) -> None:
        self.forget(slot)
        self._pool.evict(slot)

    def _worth(self, slot: int) -> float:
        name = self._pool.content(slot)
        if name is None or not self._alive(name):
            return -1.0
        chance = _FIRST + self._parted[slot] + (not self._above[slot])
        covered = self._depths[slot] - self._bases[slot]
        return covered * chance / (1 + self._texts - self._used[slot])
